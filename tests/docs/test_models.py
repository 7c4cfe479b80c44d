"""docs/models.md: its plans train its models as one device does."""

import re
from pathlib import Path

import pytest

from bench.fuzz.trial import try_plan
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.options import Training

PAGE = (Path(__file__).parent.parent.parent / "docs" / "models.md").read_text("utf-8")
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
FILES |= dict(re.findall(r"^<!-- name: (\w+\.ssp) -->\n```ssp\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
TRAINED = (
    ("towers.py:towers", "stages.ssp"),
    ("running.py:running", "by_seq.ssp"),
    ("conv.py:net", "stages.ssp"),
    ("forces.py:forces", "stages.ssp"),
    ("bert.py:bert", "stages.ssp"),
    ("in_python.py:in_python", "stages.ssp"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, where models are loaded."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_model_is_trained() -> None:
    assert {spec.partition(":")[0] for spec, _ in TRAINED} == {name for name in FILES if name.endswith(".py")}


@pytest.mark.parametrize(("spec", "plan"), TRAINED)
def test_models_train_as_one_device(spec: str, plan: str, folder: Path) -> None:
    if spec.startswith("bert"):
        pytest.importorskip("transformers")
    model = load(spec)
    outcome = try_plan(model, capture(model), (folder / plan).read_text(), Training(2, optimizer="sgd", lr=0.02))
    assert outcome.kind == "equal", outcome.text
