"""The texts of what can be wrong with checkpoints and their files: a golden for each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.run.checkpoints import errors as errors
from ssdsl.text.diagnostic import REGISTRY, Diagnostic
from ssdsl.text.render import render

ERRORS = Path(__file__).parent.parent.parent / "errors"
CUT = "`runs/a/step-00000100/__1_0.distcp` is cut off: it has 512 bytes, and there were 9216"
OLDER = "load an older checkpoint of the run, or copy this one again"
NAMED = 'save {"model": model.state_dict()} with torch.save'
SHOWN: tuple[Diagnostic, ...] = (
    errors.CheckpointWrong(None, CUT, OLDER),
    errors.WeightsUnreadable(None, "model.pt", "it holds no tensors by name", NAMED),
    errors.OptimizerWithoutNames(None, "model.pt"),
    errors.NoOptimizerState(None, "runs/a/step-00000100"),
    errors.SafetensorsMissing(None),
    errors.CheckpointsOfEarlierRun(None, "runs/a"),
)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda d: str(d.code))
def test_its_text(shown: Diagnostic, golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / f"{shown.code}.err", render(shown) + "\n")


def test_each_is_shown_and_explained() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == {d.code for d in SHOWN}
    assert all(REGISTRY[code].__doc__ for code in own)
