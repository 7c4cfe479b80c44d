"""How the ranks of one attempt find each other in torchrun's store, which outlives them.

When torchrun restarts the ranks it keeps its store, with the addresses that the dead ones left in it: new ranks would
connect to those (pytorch/pytorch#135712). The number of restarts is no name for an attempt either: torchrun counts on
each node for itself. So rank 0 gives the attempt a name, and tells it to those ranks that say a word of their own.
"""

import os
import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

POLL_S = 0.02
PREFIX = "ssdsl/rendezvous"


def has_store() -> bool:
    """Whether torchrun serves a store for the ranks."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def rendezvous(rank: int, ranks: int, timeout: timedelta) -> tuple[str, Store]:
    """The name of this attempt, and a store in which nothing was before it. Called by all ranks alike.

    Raises RuntimeError where a rank has not come within the timeout.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    name = _announce_attempt(store, ranks, timeout) if rank == 0 else _join_attempt(store, rank)
    return name, PrefixStore(f"{PREFIX}/{name}", store)


def _announce_attempt(store: Store, ranks: int, timeout: timedelta) -> str:
    """Rank 0: answer each word that is said, until all ranks have heard the answer. Words of dead ranks do no harm."""
    name = str(store.add(f"{PREFIX}/attempts", 1))
    answered: dict[int, bytes] = {}
    end = time.monotonic() + timeout.total_seconds()
    while (here := store.add(f"{PREFIX}/{name}/here", 0)) < ranks - 1:
        for rank in range(1, ranks):
            key = f"{PREFIX}/word/{rank}"
            if store.check([key]) and answered.get(rank) != (word := store.get(key)):
                answered[rank] = word
                store.set(f"{PREFIX}/answer/{word.decode()}", name)
        if time.monotonic() > end:
            raise RuntimeError(f"{ranks - 1 - here} of {ranks} ranks have not come")
        time.sleep(POLL_S)
    return name


def _join_attempt(store: Store, rank: int) -> str:
    word = uuid.uuid4().hex
    store.set(f"{PREFIX}/word/{rank}", word)
    name = store.get(f"{PREFIX}/answer/{word}").decode()
    store.add(f"{PREFIX}/{name}/here", 1)
    return name
