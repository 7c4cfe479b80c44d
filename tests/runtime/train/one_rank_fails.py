"""A program of two processes: on rank 1 the data set raises. Both must hear of it, and end. Each leads a session, whose
number it prints first."""

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ssdsl.runtime.data.loader import Loader
from ssdsl.runtime.data.rank_dataset import Workers
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.control import Control
from ssdsl.runtime.ranks.transport import Transport
from tests.runtime.train.data import BATCH, Numbers, feeds


class Broken(Numbers):
    def __getitem__(self, key: int) -> Any:
        if key == 13:
            raise ValueError("a number went missing")
        return super().__getitem__(key)


if __name__ == "__main__":
    print(os.getsid(0), flush=True)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    control = Control(Transport(timedelta(seconds=60)))
    loader = Loader(Broken(), feeds("dp")[control.rank], control, batch_size=BATCH, workers=Workers(int(sys.argv[1])))
    start = time.monotonic()
    try:
        print("batches", sum(1 for _ in loader))
    except EngineError as error:
        print("told after", time.monotonic() - start, error)
    dist.destroy_process_group()
