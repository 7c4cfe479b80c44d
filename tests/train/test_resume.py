"""A run that resumes goes on as the one that was not interrupted: to the bit under its plan, to rounding under others.

So do all things that a loop has: gradients that wait for more, clipping, schedulers, the loss scale, the data's place.
"""

from argparse import Namespace
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore
from torch.optim import lr_scheduler

from ssdsl.compile import compile_source
from ssdsl.lang.read import read_source
from ssdsl.lang.shipped import plan_path
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.record import replace
from ssdsl.run.checkpoints.convert import from_torch, open_checkpoint, to_torch
from ssdsl.run.in_process.run_in_process import program_of, run_ranks
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.main import _resume, make_optimizer
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InMemory
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.train.conftest import CPU, IDLE, batches, on_ranks

ROOT = Path(__file__).parent.parent.parent
MODELS = {
    "gpt": "gpt:tiny,layers=2,hidden=32,heads=4,seq=8,vocab=64,dropout=0.1",
    "mixed": f"{ROOT}/tests/models/mixed.py:mixed",
}
PLANS: dict[str, tuple[str, dict[str, int]]] = {
    "data": ("data_parallel", {"D": 2}),
    "tensor": ("tensor_parallel", {"T": 2}),
    "zero1": ("zero", {"D": 2, "Z": 1}),
    "zero2": ("zero", {"D": 4, "Z": 2}),
    "zero3": ("zero", {"D": 2, "Z": 3}),
    "stages": ("pipeline", {"S": 2, "M": 1}),
    "idle": (IDLE, {}),
}
Work = Callable[[Engine, Model], Any]


@lru_cache
def compiled_for(name: str, plan: str) -> tuple[Compiled, Model]:
    text, params = PLANS[plan]
    model = load(MODELS[name])
    path = plan_path(text) if "\n" not in text else None
    source = read_source(path) if path is not None else Source("idle.ssp", text)
    return compile_source(source, capture(model), params, path.parent if path is not None else None), model


def on_plan(name: str, plan: str, work: Work) -> Any:
    """What `work` gives with the engine of each rank, all alike."""
    compiled, model = compiled_for(name, plan)
    program = program_of(compiled.program, model)

    def body(world: World, place: Any) -> Any:
        engine = Engine(
            InMemory(replace(program, weights=program.weights.copy())), world, CPU, seed=3, background=False
        )
        place(lambda: engine.training.runner.doing or "between tasks")
        found = work(engine, model)
        engine.close()
        return found

    first, *others = run_ranks(program.table.world_size, body)
    assert all(other == first for other in others)
    return first


def begun(engine: Engine) -> Any:
    engine.optimizer(torch.optim.AdamW, lr=1e-2, groups={"*.bias|*norm*": {"weight_decay": 0.0}})
    return lr_scheduler.ExponentialLR(engine.optim, 0.9)


def trained(engine: Engine, model: Model, scheduler: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        losses.append(engine.step(model.batches[engine.steps % len(model.batches)], clip=0.5))
        scheduler.step()
    return losses


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt", "mixed"])
def test_the_next_losses_are_those_of_the_run_that_was_not_interrupted(name: str, tmp_path: Path) -> None:
    for plan in PLANS:

        def uninterrupted(engine: Engine, model: Model, folder: Path = tmp_path / plan) -> list[float]:
            scheduler = begun(engine)
            trained(engine, model, scheduler, 2)
            engine.save(folder)
            return trained(engine, model, scheduler, 3)

        expected = on_plan(name, plan, uninterrupted)
        for other in PLANS:

            def resumed(engine: Engine, model: Model, folder: Path = tmp_path / plan) -> list[float]:
                scheduler = begun(engine)
                assert engine.resume(folder) == {}
                assert engine.steps == 2 and engine.seed == 3
                return trained(engine, model, scheduler, 3)

            found = on_plan(name, other, resumed)
            if other == plan:
                assert found == expected, plan
            else:
                assert found == pytest.approx(expected, rel=2e-5), f"{plan} to {other}"


# -- all that a loop has -----------------------------------------------------------------------------------------------

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 6)], [2]
    ),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.05, total_steps=9),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
}


class Samples(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Five batches of twelve an epoch."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        batch = batches(5)[index // 12]
        return {name: tensor[index % 12] for name, tensor in batch.items()}


def looped(kind: str, folder: Path, stop: int | None) -> Callable[[Engine], Any]:
    """Nine batches, two of which make a step; saved behind batch `stop`: where it is odd, gradients wait."""

    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        scheduler = SCHEDULERS[kind](engine.optim)
        loader = engine.loader(Samples(), 12, shuffle=True, seed=2)
        if engine.scaler is not None:
            engine.scaler.scale, engine.scaler.interval = 256.0, 3
        engine.resume(folder)
        found = []
        for batch in loader.epochs():
            last = engine.micro_steps % 2 == 1
            loss = engine.step(batch, clip=0.3, update=last, scale=0.5)
            if last:
                scheduler.step(loss) if kind == "plateau" else scheduler.step()
            rate, scale = engine.optim.param_groups[0]["lr"], engine.scaler.scale if engine.scaler is not None else 1.0
            found.append((engine.micro_steps, loss, rate, scale))
            if engine.micro_steps == stop:
                engine.save(folder)
                break
            if engine.micro_steps == 9:
                break
        return found

    return work


@pytest.mark.parametrize(
    ("kind", "plan", "precision", "stop"),
    [
        ("sequential", "zero1", None, 5),
        ("one cycle", "stages", None, 4),
        ("plateau", "zero3", "fp16", 7),
        ("lambda", "tensor", "bf16", 3),
    ],
)
def test_all_that_a_loop_has_survives(kind: str, plan: str, precision: str | None, stop: int, tmp_path: Path) -> None:
    whole = on_ranks(plan, looped(kind, tmp_path / "none", None), precision)
    before = on_ranks(plan, looped(kind, tmp_path / "run", stop), precision)
    after = on_ranks(plan, looped(kind, tmp_path / "run", None), precision)
    assert [a + b for a, b in zip(before, after, strict=True)] == whole
    assert [place for place, *_ in after[0]] == list(range(stop + 1, 10))
    if precision == "fp16":
        assert {scale for *_, scale in whole[0]} > {256.0}


def test_gradients_that_wait_are_those_of_another_plan_too(tmp_path: Path) -> None:
    whole = on_ranks("data", looped("one cycle", tmp_path / "none", None))[0]
    on_ranks("data", looped("one cycle", tmp_path / "run", 3))
    after = on_ranks("zero3", looped("one cycle", tmp_path / "run", None))[0]
    for (_, loss, rate, _), (_, expected, wanted, _) in zip(after, whole[3:], strict=True):
        assert rate == wanted and loss == pytest.approx(expected, rel=1e-5)


def test_another_optimizer_or_other_groups_are_told(tmp_path: Path) -> None:
    def save(engine: Engine) -> None:
        engine.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
        engine.step(batches(1)[0])
        engine.save(tmp_path)

    def told(make: Any, groups: Any) -> Callable[[Engine], str]:
        def work(engine: Engine) -> str:
            engine.optimizer(make, lr=0.1, groups=groups)
            with pytest.raises(EngineError) as caught:
                engine.resume(tmp_path)
            return str(caught.value)

        return work

    on_ranks("data", save)
    for said in on_ranks("data", told(torch.optim.AdamW, None)):
        assert "the state of SGD, and the engine has AdamW" in said and "help: " in said
    for said in on_ranks("data", told(torch.optim.SGD, {"*.bias": {}})):
        assert "has 1 parameter groups, and the engine's optimizer has 2" in said and "help: " in said


def test_the_command_line_names_its_option_of_another_optimizer(tmp_path: Path) -> None:
    def save(engine: Engine) -> None:
        make_optimizer(engine, "adamw", 1e-3)
        engine.step(batches(1)[0])
        engine.save(tmp_path)

    def told(engine: Engine) -> str:
        make_optimizer(engine, "sgd", 0.1)
        with pytest.raises(EngineError) as caught:
            _resume(engine, Namespace(resume=tmp_path, save=None, optimizer="sgd", data=None))
        return str(caught.value)

    def goes_on(engine: Engine) -> int:
        make_optimizer(engine, "AdamW", 1e-3)
        _resume(engine, Namespace(resume=tmp_path, save=None, optimizer="AdamW", data=None))
        return engine.steps

    on_ranks("data", save)
    for said in on_ranks("data", told):
        assert "was saved with the state of AdamW, and --optimizer is sgd" in said
        assert "help: give --optimizer adamw, or another folder with --resume" in said
    assert on_ranks("data", goes_on) == [1, 1]


def options_of(save: Path, resume: Path | None = None) -> Namespace:
    return Namespace(resume=resume, save=save, optimizer="sgd", data=None)


def attempt_of(options: Namespace) -> Any:
    """An attempt of main.py that takes a step and saves: the steps behind it on each rank, or the reason of its end."""

    def work(engine: Engine) -> int | str:
        make_optimizer(engine, "sgd", 0.1)
        try:
            _resume(engine, options)
        except EngineError as error:
            return str(error)
        behind = engine.steps
        engine.step(batches(1)[0])
        engine.save(options.save)
        return behind

    return on_ranks("data", work)


@pytest.fixture
def run_begins(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Starts another run: its ranks have a store of their own, which they have through all attempts."""
    stores = []

    def begin() -> None:
        stores.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": stores[-1].port, "TORCHELASTIC_USE_AGENT_STORE": True}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))

    return begin


def test_another_attempt_goes_on_whatever_the_count_of_its_node(
    tmp_path: Path, run_begins: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun of a node where nothing failed has not counted the restart."""
    run_begins()
    for count, behind in (("0", 0), ("0", 1), ("1", 2)):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        assert attempt_of(options_of(tmp_path)) == [behind, behind]


def test_another_attempt_does_not_take_checkpoints_of_another_run(
    tmp_path: Path, run_begins: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_begins()
    assert attempt_of(options_of(tmp_path)) == [0, 0]
    run_begins()
    for count in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        for said in attempt_of(options_of(tmp_path)):
            assert "has checkpoints of an earlier run" in said and f"--resume {tmp_path}" in said


def test_another_attempt_of_a_resumed_run_keeps_what_it_has_trained(
    tmp_path: Path, run_begins: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_begins()
    assert attempt_of(options_of(tmp_path / "first")) == [0, 0]
    run_begins()
    options = options_of(tmp_path / "second", tmp_path / "first")
    assert attempt_of(options) == [1, 1]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert attempt_of(options) == [2, 2]


def test_without_a_store_that_stays_the_count_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempt_of(options_of(tmp_path / "first")) == [0, 0]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert attempt_of(options_of(tmp_path / "first")) == [1, 1]
    assert attempt_of(options_of(tmp_path / "second", tmp_path / "first")) == [2, 2]  # nothing saved there yet


def test_the_command_line_asks_for_the_data_of_the_run(tmp_path: Path) -> None:
    def save(engine: Engine) -> None:
        make_optimizer(engine, "adamw", 1e-3)
        for batch in engine.loader([batches(1)[0]], batch_size=None):
            engine.step(batch)
        engine.save(tmp_path)

    def told(engine: Engine) -> str:
        make_optimizer(engine, "adamw", 1e-3)
        with pytest.raises(EngineError) as caught:
            _resume(engine, Namespace(resume=tmp_path, save=None, optimizer="adamw", data=None))
        return str(caught.value)

    on_ranks("data", save)
    for said in on_ranks("data", told):
        assert "had data of its own" in said and "help: give its --data too" in said


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_what_came_from_a_file_of_torch_is_loaded_and_no_run_to_resume(
    optimizer: type[torch.optim.Optimizer], tmp_path: Path
) -> None:
    file, folder = tmp_path / "model.pt", tmp_path / "again"

    def save(engine: Engine) -> float:
        engine.optimizer(optimizer, lr=0.1)
        engine.step(batches(1)[0])
        engine.save(tmp_path / "run", wait=True)
        return engine.step(batches(1)[0])

    def loads(engine: Engine) -> float:
        engine.optimizer(optimizer, lr=0.5)
        engine.load(folder)
        assert engine.optim.param_groups[0]["lr"] == 0.1
        with pytest.raises(EngineError, match="not the steps and the data of a run"):
            engine.resume(folder)
        with pytest.raises(EngineError, match="not the steps and the data of a run"):
            _resume(engine, Namespace(resume=folder, save=None, optimizer="adamw", data=None))
        return engine.step(batches(1)[0])

    def other(engine: Engine) -> str:
        engine.optimizer(torch.optim.Adagrad, lr=0.5)
        with pytest.raises(EngineError) as caught:
            engine.load(folder)
        return str(caught.value)

    expected = on_ranks("data", save)
    to_torch(open_checkpoint(str(tmp_path / "run")), file, optim=True)
    from_torch(file, folder)
    assert on_ranks("data", loads) == expected
    assert "the state of another optimizer than Adagrad: one with " in on_ranks("data", other)[0]
