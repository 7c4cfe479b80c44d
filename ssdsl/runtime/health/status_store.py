"""Key-value notes shared by all ranks, over a separate connection to torchrun's store (or rank 0's).

The connection is not torch.distributed's own, so a thread can use it while the rank waits in a collective.
"""

import os
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

PATIENCE_S = 5.0  # how long the store may take to answer


class StatusStore:
    """The notes of one attempt of a run. Notes of earlier attempts are not visible."""

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
        self._asked().set(key, text)

    def get(self, key: str) -> str | None:
        """The note under this key, or None."""
        store = self._asked()
        return store.get(key).decode() if store.check([key]) else None

    def set_if_absent(self, key: str, text: str) -> str:
        """Writes a note if there is none yet; returns the note that is there then."""
        return str(self._asked().compare_set(key, "", text).decode())

    def _asked(self) -> Store:
        if self._store is None:
            patience = timedelta(seconds=PATIENCE_S)
            store = TCPStore(self.host, self.port, is_master=False, timeout=patience, wait_for_workers=False)
            self._store = PrefixStore(f"ssdsl/status/{self.attempt}", store)
        return self._store
