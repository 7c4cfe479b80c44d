"""Rendezvous: ranks of one attempt find each other in torchrun's store, which outlives the attempt.

When torchrun restarts the ranks it keeps its store, with the addresses that dead ranks left in it, and new ranks would
connect to those (pytorch/pytorch#135712). The restart count does not identify an attempt, because torchrun counts on
each node separately. So rank 0 names the attempt, and sends the name to each rank that asks with a random word of its
own.
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
    """The name of this attempt, and a store that is empty at its start. Called by all ranks alike.

    Raises RuntimeError if a rank has not come within the timeout.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
    name = _announce_attempt(store, ranks, timeout) if rank == 0 else _join_attempt(store, rank)
    return name, PrefixStore(f"{PREFIX}/{name}", store)


def _announce_attempt(store: Store, ranks: int, timeout: timedelta) -> str:
    """Rank 0: answers join requests until every rank has joined. Requests left by dead ranks are ignored."""
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
