"""Messages of ranks through torchrun's store (or rank 0's): they agree on the name of an attempt, and share notes.

When torchrun restarts the ranks it keeps its store, with the addresses that dead ranks left in it, and new ranks would
connect to those (pytorch/pytorch#135712). The restart count does not identify an attempt, because torchrun counts on
each node separately. So rank 0 names the attempt. Each other rank asks for the name with a random word, and reads the
answer under this word.
"""

import os
import time
import uuid
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

PATIENCE_S = 5.0  # how long the store may take to answer
POLL_S = 0.02  # between two looks of rank 0 for requests
PREFIX = "ssdsl/rendezvous"


class StatusStore:
    """Key-value notes shared by all ranks of one attempt of a run. Notes of earlier attempts are not visible.

    The connection is not torch.distributed's own, so a thread can use it while the rank waits in a collective.
    """

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.host, self.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store: Store | None = None

    @property
    def is_open(self) -> bool:
        """Whether the store has been used before."""
        return self._store is not None

    def put(self, key: str, text: str) -> None:
        """Writes a note; other ranks may see it a little later. Raises RuntimeError if the store does not answer, as
        all methods do."""
        self._connected().set(key, text)

    def get(self, key: str) -> str | None:
        """The note under this key, or None."""
        store = self._connected()
        return store.get(key).decode() if store.check([key]) else None

    def set_if_absent(self, key: str, text: str) -> str:
        """Writes a note if there is none yet; returns the note that is there then."""
        return str(self._connected().compare_set(key, "", text).decode())

    def _connected(self) -> Store:
        """The store, connected at the first use. Raises RuntimeError if it does not answer."""
        if self._store is None:
            patience = timedelta(seconds=PATIENCE_S)
            store = TCPStore(self.host, self.port, is_master=False, timeout=patience, wait_for_workers=False)
            self._store = PrefixStore(f"ssdsl/status/{self.attempt}", store)
        return self._store


# -- the rendezvous of an attempt --------------------------------------------------------------------------------------


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
    """Other ranks: ask for the name of the attempt, wait for the answer, and report that they have it."""
    word = uuid.uuid4().hex
    store.set(f"{PREFIX}/word/{rank}", word)
    name = store.get(f"{PREFIX}/answer/{word}").decode()
    store.add(f"{PREFIX}/{name}/here", 1)
    return name
