"""A program of two processes, whose calls differ. Rank 1 is told, and ends; then rank 0 is told that it has ended."""

import torch
import torch.distributed as dist

from ssdsl.runtime.link.backend import BACKEND

if __name__ == "__main__":
    dist.init_process_group(BACKEND)
    x = torch.ones(3 + dist.get_rank())
    work = dist.all_reduce(x, async_op=True)
    try:
        work.wait()
    except RuntimeError as error:
        print(f"{error}|{work.is_success()}|{str(error) in str(work.exception())}")
