"""The process in which experiments run, as an operator that is called with wrong numbers may crash it.

It reads jobs from its input, and writes a line for each result to the file that its argument names.
"""

import importlib
import pickle
import sys
from typing import Any

import msgspec
import torch

from ssdsl.discover.experiment import experiment
from ssdsl.discover.trial import LIMIT_S
from ssdsl.model.capture.call import CapturedCall, Tensor
from ssdsl.model.capture.overloads import overload
from ssdsl.model.target import Target
from ssdsl.record import Record


class TrialJob(Record):
    """A call of an operator, which `module` defines. `careful`: integers stay as small as possible."""

    module: str
    target: Target
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    careful: bool = False


def main() -> None:
    torch.set_num_threads(1)
    jobs: list[TrialJob] = pickle.load(sys.stdin.buffer)
    with open(sys.argv[1], "ab") as results:
        for job in jobs:
            if job.module:
                importlib.import_module(job.module)
            call = CapturedCall("", "", overload(job.target), job.args, job.kwargs, "", "", ())
            results.write(msgspec.json.encode(experiment(call, job.given, job.made, job.careful, LIMIT_S)) + b"\n")
            results.flush()


if __name__ == "__main__":
    main()
