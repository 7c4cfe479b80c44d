"""Short notes that all ranks of a run can read, on whatever node they are: a connection of its own to their store.

The store is the one at which the ranks met, of torchrun or of rank 0. The connection is another than that of
torch.distributed, so that it can be asked while the rank waits in a collective.
"""

import os
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

PATIENCE_S = 5.0  # how long the store may take to answer


class StatusStore:
    """The notes of one attempt of a run: those of earlier ones are not seen."""

    def __init__(self, attempt: str) -> None:
        self.attempt = attempt
        self.host, self.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store: Store | None = None

    @property
    def is_open(self) -> bool:
        """Whether the store has been asked before."""
        return self._store is not None

    def put(self, key: str, text: str) -> None:
        """Sends a note off, which others may see a little later. Raises RuntimeError where the store does not answer,
        as the others do."""
        self._asked().set(key, text)

    def get(self, key: str) -> str | None:
        """A note, None if there is none."""
        store = self._asked()
        return store.get(key).decode() if store.check([key]) else None

    def set_if_absent(self, key: str, text: str) -> str:
        """Writes a note where there is none yet; what it says then."""
        return str(self._asked().compare_set(key, "", text).decode())

    def _asked(self) -> Store:
        if self._store is None:
            patience = timedelta(seconds=PATIENCE_S)
            store = TCPStore(self.host, self.port, is_master=False, timeout=patience, wait_for_workers=False)
            self._store = PrefixStore(f"ssdsl/status/{self.attempt}", store)
        return self._store
