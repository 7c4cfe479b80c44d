"""torchrun reports one failed process; the agent notes the others that have failed till then."""

import os
import signal

import pytest
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException, start_processes

from ssdsl.run.torchrun_agent import noting


def end(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


def test_all_processes_that_have_failed_are_noted() -> None:
    codes: dict[int, int] = {}
    start = noting(start_processes, codes)
    context: ProcessContext = start(end, nprocs=2, join=False, start_method="fork")
    for process in context.processes:
        process.join()
    with pytest.raises(ProcessExitedException):
        context.join()
    assert codes == {0: 1, 1: -signal.SIGKILL}
