"""Programs of use: what a training script does with engines is what it does on one device."""

from pathlib import Path

import pytest
import torch

from bench.fuzz.models import Recipe
from bench.fuzz.run import main, uses, write_use
from bench.fuzz.single import rows_of
from bench.fuzz.trial import Outcome
from bench.fuzz.use import PARTS, Evaluate, Predict, Resume, Run, Save, Train, Use
from bench.fuzz.use_trial import try_use
from ssdsl.record import replace
from ssdsl.runtime.train import training_state
from ssdsl.runtime.train.engine import Engine

MODEL = Recipe(4, 2, 4, 6, "embedding", (("Mlp", (4, 8, True, "gelu")), ("Batched", (4,))), "squares", 1)
DATA = ("mesh gpus(dp = 2)", "split model by batch into dp", "assign model to gpus")
TENSOR = ("mesh gpus(tp = 2)", "split model by ffn into tp", "assign model to gpus")
ZERO = (*DATA[:2], "split model.optimizer by row into dp", "assign model to gpus")
STAGES = (
    *("mesh gpus(pp = 2)", 'let last = model["head"]'),
    *("assign model - last to gpus[pp = 0]", "assign last to gpus[pp = 1]"),
)
FIRST, SECOND, REST = (0, 4), (4, 4), (8, 2)
PROGRAMS = {
    "another plan and what was lost": Use(
        *(MODEL, 4, 10, "adamw"),
        (
            Run(DATA, (Train(FIRST, 0.05), Save(), Train(SECOND))),
            Run(TENSOR, (Train(SECOND), Evaluate((FIRST, SECOND)), Train(FIRST, 0.05))),
        ),
        is_scheduled=True,
    ),
    "gradients that wait": Use(
        *(MODEL, 4, 10, "momentum"),
        (
            Run(ZERO, (Train(FIRST, None, False, 0.5), Save())),
            Run(DATA, (Train(SECOND, None, True, 0.5), Train(FIRST), Resume(), Train(REST, None, True, 0.5))),
        ),
    ),
    "a loader with an odd last batch": Use(
        *(MODEL, 4, 10, "amsgrad"),
        (Run(DATA, (Train(None), Train(None), Save())), Run(ZERO, (Train(None), Train(None)))),
        shuffle=True,
    ),
    "losses with optimizers of their own": Use(
        *(replace(MODEL, layers=MODEL.layers[:1], returns_all=True), 4, 10, "momentum"),
        (
            Run(DATA, (Train(FIRST, 0.05, loss="second"), Train(SECOND, loss="loss", part=1), Predict(REST), Save())),
            Run(TENSOR, (Evaluate((FIRST,), "second"), Train(REST, part=1), Predict(FIRST, outputs=("some.1.half",)))),
        ),
        parts=PARTS,
    ),
    "a loss that does not reach a weight whose axis is two": Use(
        *(Recipe(4, 2, 4, 6, "streams", (), "classes", 1, returns_all=True), 4, 8, "sgd"),
        (Run(DATA, (Train(FIRST, loss="second"), Train(SECOND, loss="loss"))),),
    ),
    "a loss without a task on the stage of a tied weight": Use(
        *(
            Recipe(4, 2, 4, 6, "embedding", (("Mlp", (4, 8, False, "gelu")),), "tied", 1, returns_all=True),
            4,
            8,
            "adamw",
        ),
        (Run(STAGES, (Train(FIRST, 0.05, loss="second"), Train(SECOND), Evaluate((FIRST,), "second"))),),
    ),
    "a loss without a task on a stage": Use(
        *(
            Recipe(4, 2, 4, 6, "embedding", (("Mlp", (4, 8, False, "gelu")),), "squares", 1, returns_all=True),
            4,
            8,
            "sgd",
        ),
        (Run(STAGES, (Train(FIRST, 0.05, loss="second", part=1), Train(SECOND), Evaluate((FIRST,), "second"))),),
        parts=PARTS,
    ),
    "other lengths": Use(
        *(replace(MODEL, layers=MODEL.layers[:1], returns_all=True), 4, 10, "sgd"),
        (Run(DATA, (Train(FIRST, length=3), Train(SECOND, length=1), Predict(REST, length=5))),),
    ),
    "autocast": Use(
        *(replace(MODEL, layers=MODEL.layers[:1], precision="float32"), 4, 8, "sgd"),
        (Run(TENSOR, (Train(FIRST), Train(SECOND), Evaluate((FIRST,)))),),
        is_autocast=True,
    ),
}


SHOWN_BY_OTHERS = ("a loss without a task on a stage", "autocast")  # of a tied weight; in what is written


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SHOWN_BY_OTHERS else []) for n in PROGRAMS]
)
def test_a_program_is_equal_to_one_device(name: str) -> None:
    outcome = try_use(PROGRAMS[name])
    assert outcome.kind == "equal", outcome.text


@pytest.mark.slow
def test_what_goes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that are not kept; the norm of a part; an optimizer's state that is not restored; another result."""
    restore = training_state.restore
    waits, resumes = PROGRAMS["gradients that wait"], PROGRAMS["another plan and what was lost"]
    with monkeypatch.context() as patch:
        patch.setattr(training_state, "restore", lambda *given, **how: (restore(*given, **how), {})[1])
        assert try_use(waits).column == "wrong"
    with monkeypatch.context() as patch:
        patch.setattr("ssdsl.runtime.train.step_end._square_sums", lambda gradients: [torch.ones(())])
        assert try_use(resumes).column == "wrong"
    with monkeypatch.context() as patch:
        patch.setattr(training_state, "_set", lambda *given: None)
        assert try_use(resumes).column == "wrong"
    with monkeypatch.context() as patch:
        predict = Engine.predict
        patch.setattr(Engine, "predict", lambda engine, batch, *names: predict(engine, rows_of(batch, 0, 2), *names))
        assert try_use(PROGRAMS["losses with optimizers of their own"]).sign == "output"


def test_a_batch_that_a_plan_cannot_cut_is_refused_by_its_code() -> None:
    plan = (*DATA[:1], "split model by batch into dp = 2, m = 2", "assign model to gpus")
    model = replace(MODEL, layers=MODEL.layers[:1])
    outcome = try_use(Use(model, 4, 10, "sgd", (Run(plan, (Train(FIRST), Train((0, 3)))),)))
    assert outcome.column in ("equal", "refused") and outcome.sign in ("", "E0203")


def test_a_seed_gives_the_same_programs() -> None:
    first = list(uses(1, 1))
    assert first == list(uses(1, 1)) and len({str(use) for use in first}) == len(first)


def test_a_program_is_written_so_that_it_repeats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_use(tmp_path, PROGRAMS["autocast"], Outcome("wrong"))
    exec((tmp_path / "repeat.py").read_text(), {})
    assert "Outcome(kind='equal'" in capsys.readouterr().out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--use", "--minutes", "0", "--seed", "4", "--shrink-s", "0", "--out", str(tmp_path / "found")])
    assert "1 programs" in capsys.readouterr().out
