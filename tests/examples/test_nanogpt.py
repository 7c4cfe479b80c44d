"""examples/nanogpt: a plan trains as one device, a resumed run as one that went on; the curves tell a wrong plan."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from tests.examples.conftest import NANOGPT

SMALL = {"steps": 5, "batch": 4, "seq": 16, "layers": 1, "width": 16, "heads": 2, "warmup": 2, "evaluate": 5}


@pytest.mark.slow
def test_resumed_as_uninterrupted_and_as_one_device(
    nanogpt: SimpleNamespace, torchrun: Callable[..., str], tmp_path: Path
) -> None:
    """Its newest checkpoint is of step 3: started again, the run takes the last two steps again."""

    def run() -> list[dict[str, Any]]:
        options = [f"--{name}={value}" for name, value in SMALL.items()]
        plan = ["--plan=zero", "--set=D=2", "--save=3", "--ema=0.5", f"--out={tmp_path}"]
        torchrun(NANOGPT / "train.py", *plan, *options)
        lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
        return [
            {key: line.get(key) for key in ("step", "loss", "lr", "grad_norm", "valid", "valid_ema")}
            for line in map(json.loads, lines)
        ]

    whole = run()
    assert [line["step"] for line in whole] == list(range(5)) and whole[-1]["valid"]
    again = run()
    assert again == whole
    assert whole[-1]["valid_ema"] not in (None, whole[-1]["valid"])
    settings = nanogpt.settings.Settings(**SMALL)
    model = settings.model()
    losses = nanogpt.alone.train(settings, model)
    torch.testing.assert_close([line["loss"] for line in whole], losses, rtol=2e-6, atol=2e-6)
    assert whole[-1]["valid"] == pytest.approx(nanogpt.alone.evaluate(settings, model), rel=2e-6)


def test_data_follow_from_seed_and_index(nanogpt: SimpleNamespace) -> None:
    first, same, other = (nanogpt.data.Windows("train", 16, 8, seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[i]["x"], same[i]["x"]) for i in range(8))
    assert not all(torch.equal(first[i]["x"], other[i]["x"]) for i in range(8))
    assert torch.equal(first[3]["x"][1:], first[3]["y"][:-1])
    train, valid = first.text, nanogpt.data.Windows("valid", 16, 8).text
    assert torch.equal(torch.cat([train, valid]), nanogpt.data.text())


@pytest.mark.slow
def test_the_tolerance_is_that_of_rounding(nanogpt: SimpleNamespace) -> None:
    """A model of another dropout is further off than rounding explains; the last digit of weights is not."""
    settings = nanogpt.settings.Settings(**SMALL)
    alone, allowed = nanogpt.curves.on_one_device(settings)
    assert len(allowed) == 5 and all(0 < a < 1e-4 for a in allowed)
    moved = settings.model()
    with torch.no_grad():
        moved.tokens.weight.mul_(1 + 1e-7)
    assert nanogpt.curves.worst_share(nanogpt.alone.train(settings, moved), alone, allowed)[0] < 1
    wrong = nanogpt.settings.Settings(**SMALL | {"dropout": 0.11})
    assert nanogpt.curves.worst_share(nanogpt.alone.train(wrong, wrong.model()), alone, allowed)[0] > 1
    assert nanogpt.curves.worst_share(alone[:3], alone, allowed) == (float("inf"), 3)
    assert nanogpt.curves.worst_share([float("nan"), *alone[1:]], alone, allowed) == (float("inf"), 0)


def test_the_picture_has_a_line_for_each_curve(nanogpt: SimpleNamespace) -> None:
    curves = {"one": [3.0, 2.5, 2.0], "two": [3.0, 2.5, 2.0001]}
    svg = ElementTree.fromstring(nanogpt.picture.picture(curves, [1e-6, 2e-6, 3e-6]))
    lines = [line.attrib["points"].split() for line in svg if line.tag.endswith("polyline")]
    assert [len(line) for line in lines] == [3, 3, 3]  # two losses, and one distance
    heights = [float(point.split(",")[1]) for point in lines[-1]]
    assert heights[0] == heights[1] > heights[2]
    assert {"one", "two"} <= {text.text for text in svg if text.tag.endswith("text")}


def test_the_picture_of_the_documentation_is_of_these_plans(nanogpt: SimpleNamespace) -> None:
    svg = ElementTree.parse(NANOGPT.parents[1] / "docs" / "nanogpt.svg").getroot()
    assert {"one device", *nanogpt.curves.PLANS} <= {text.text for text in svg if text.tag.endswith("text")}
