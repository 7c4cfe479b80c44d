"""Checkpoints in torch.distributed.checkpoint's format, saved under one plan and loaded under any."""

from .content import Content, content_of
from .loader import LoadedTraining, load_on_all, new_state, open_on_all, read_on_all
from .reader import Checkpoint
from .saver import Saver

__all__ = [
    "Checkpoint",
    "Content",
    "LoadedTraining",
    "Saver",
    "content_of",
    "load_on_all",
    "new_state",
    "open_on_all",
    "read_on_all",
]
