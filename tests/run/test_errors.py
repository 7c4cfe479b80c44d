"""The texts of the diagnostics of running: a golden for each, made from values as they occur."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.record import replace
from ssdsl.run import errors
from ssdsl.text.diagnostic import REGISTRY, Diagnostic
from ssdsl.text.render import render
from ssdsl.text.source import Source, Span

ERRORS = Path(__file__).parent.parent / "errors"
REASON = "allowed: 1e-05, with 0.3 as the largest element: 8 times the measured effect of rounding"
PLACE = "step 3, forward of block 2 at [0] (role_gpus_pp1.py, line 31)"
WAITING = "these wait for others:\nrank 0 since 598 s in step 3, backward of block 1 at [2]"
SUMMARY = "3 of 211 tensors differ"
MESH = Source("p.ssp", "mesh gpus(dp = 64, tp = 8)\n")
SHOWN: tuple[Diagnostic, ...] = (
    errors.ModelWithoutNumbers(None, "gpt:175b"),
    errors.NoCompiler(None, "there is no C++ compiler", "install one; or give kernels 'eager'"),
    errors.RankFailed(None, 1, "was killed by SIGKILL", "it printed nothing", "the machine may have run out of memory"),
    errors.LaunchFailed(None, 1, "the port is taken", "out/torchrun.log"),
    errors.ResultMissing(None, 0, "rank0.json", "FileNotFoundError: rank0.json"),
    errors.TooFewDevices(None, 4, 1),
    errors.TooFewProcesses(Span(MESH, 0, 26), 512, 16),
    errors.NodesMisfit.of(Span(MESH, 0, 26), 4, 3, None),
    errors.LinkElsewhere(None, "the run is on 2 machines", "leave out --nnodes, or --link"),
    errors.FolderInUse(None, "src"),
    errors.OtherRunInFolder(None, "runs/a", "process 4321 on node7"),
    errors.FolderUnwritable(None, "/proc/p", "no such file or directory"),
    errors.DiskFull(
        None, "rank 1", "out/results", "where: role gpus, step 2, optimizer\nOSError: no space left on device"
    ),
    errors.RankStuck(None, 2, ", role gpus_pp1,", 600, "its process is stopped", f"it is in {PLACE}", WAITING, "1200"),
    errors.SparseGradients(None, "words.weight", "AdamW", "Adam does not support sparse gradients"),
    errors.OutOfMemory(None, "rank 1", f"where: role gpus, {PLACE}\nMemoryError"),
    errors.LossNotFinite(None, "nan", 7, 0.1),
    errors.NothingToTrain(None, 4, 3),
    errors.RunStopped(None, 40, 100, "runs/a/checkpoints"),
    errors.NothingCompared(None, "nan", "the first NaN is in the result of `linear` in module `o`, bug.py:14"),
    errors.PiecesDisagree(None, "weight", "fc.weight", 0, 3, "[2, 3]", 1.0, 1.001),
    errors.CodesDiffer(None, "add_11_code", 1, 6),
    errors.PiecesIncomplete(None, "weight", "fc.weight", "no rank holds element [0, 0] of [4, 2]"),
    errors.RunDiffers(
        None, "gradient", "step 0 fc.bias", "largest error 0.1 at [2]", 0.2, 0.1, REASON, SUMMARY, chooses=False
    ),
)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda d: str(d.code))
def test_its_text(shown: Diagnostic, golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / f"{shown.code}.err", render(shown) + "\n")


def test_each_is_shown_and_explained() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == {d.code for d in SHOWN}
    assert all(REGISTRY[code].__doc__ for code in own)


def test_choices_are_only_named_where_the_model_makes_some() -> None:
    differs = next(d for d in SHOWN if isinstance(d, errors.RunDiffers))
    assert "topk" not in render(differs) and "unless `topk` chooses" in render(replace(differs, chooses=True))


def test_without_a_gpu_none_can_be_shared() -> None:
    assert errors.TooFewDevices(None, 2, 0).change == "run on processors: --device cpu"
