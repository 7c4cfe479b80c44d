"""What a training script does wrong is told, on all ranks alike, and leaves the training as it was."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import SGD, AdamW

from ssdsl.run.engine import _check_arguments, _compare
from ssdsl.run.in_process.run_in_process import run_ranks
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.program.program import CompiledProgram
from ssdsl.runtime.program.returned import Leaf, Step
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train import session
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.programs import InFolder, Variant
from tests.train.conftest import batches, on_ranks, saved

Act = Callable[[Engine], Any]
BATCH = batches(1)[0]


class Pairs(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {name: torch.full((5,), at) for name in ("x", "y")}


class Unit(SGD):
    """Steps of length one along each weight's gradient."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad / p.grad.norm(), alpha=-0.1)


class Normalised(SGD):
    """Steps of a length that is the learning rate along the gradient of all weights together."""

    def step(self, closure: Any = None) -> None:
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in every]).norm()
        for p in every:
            p.data.add_(p.grad / norm, alpha=-self.param_groups[0]["lr"])


class Noisy(SGD):
    """Steps that are drawn."""

    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            p.data.add_(torch.randn_like(p), alpha=-self.param_groups[0]["lr"])


def trained(engine: Engine) -> Engine:
    engine.optimizer(SGD, lr=0.1)
    return engine


def changed(engine: Engine, change: Callable[[Any], dict[str, Any]]) -> None:
    """A step on a loader's batch that the loop has changed."""
    batch = next(iter(trained(engine).loader(Pairs(), 12)))
    batch.update(change(batch))
    engine.step(batch)


def told(act: Act) -> Callable[[Engine], str]:
    """What a rank is told."""

    def work(engine: Engine) -> str:
        with pytest.raises(EngineError) as error:
            act(engine)
        return str(error.value)

    return work


WRONG: dict[str, tuple[Act, str]] = {
    "an option": (lambda e: e.optimizer(AdamW, learning_rate=1), "unexpected keyword argument 'learning_rate'"),
    "a name": (lambda e: e.optimizer("adamw", lr=1), "the optimizer is 'adamw'"),  # type: ignore[arg-type]
    "an instance": (lambda e: e.optimizer(SGD(torch.nn.Linear(1, 1).parameters())), "an instance of SGD"),  # type: ignore[arg-type]
    "a list of groups": (lambda e: e.optimizer(SGD, groups=[{"lr": 1}], lr=1), "not a dictionary of dictionaries"),  # type: ignore[arg-type]
    "a group's option": (lambda e: e.optimizer(AdamW, groups={"*bias": {"wd": 0}}), "`AdamW` has no option `wd`"),
    "a frozen group": (lambda e: e.optimizer(SGD, groups={"frozen*": {"lr": 1}}), "no trained weight has such a name"),
    "a group behind": (
        lambda e: e.optimizer(SGD, groups={"*": {"lr": 1}, "*bias": {"lr": 2}}),
        "all weights that fit it are in groups before it",
    ),
    "only matrices": (lambda e: e.optimizer(torch.optim.Muon, lr=0.1), "Muon does not take these weights"),
    "of one rank": (lambda e: e.optimizer(SGD, lr=0.1 + e.rank), "options on rank 1 are not those on rank 0"),
    "a late group": (lambda e: trained(e).optim.add_param_group({"params": []}), "groups are not added"),
    "clip": (lambda e: trained(e).step(BATCH, clip=0.0), "clip=0.0 is no norm"),
    "scale": (lambda e: trained(e).step(BATCH, scale=float("nan")), "scale=nan scales no loss"),
    "no samples": (lambda e: trained(e).step({n: t[:0] for n, t in BATCH.items()}), "the batch has no samples"),
    "fewer of one input": (
        lambda e: trained(e).step({**BATCH, "x": BATCH["x"][:3]}),
        "input `x` has 3 samples, and the batch has 12",
    ),
    "more of another input": (
        lambda e: trained(e).step({**BATCH, "y": BATCH["y"].repeat(2, 1)}),
        "input `y` has 24 samples, and the batch has 12",
    ),
    "a name to put": (lambda e: e.put({"up.bais": torch.zeros(24)}), "has no weight or buffer `up.bais`"),
    "a shape to put": (
        lambda e: e.put({"up.bias": torch.zeros(7)}),
        "`up.bias` is of shape [7], and this rank holds [24] of it",
    ),
    "no tensor to put": (lambda e: e.put({"up.bias": 0.0}), "`up.bias` is 0.0, not a tensor"),  # type: ignore[dict-item]
    "nothing to evaluate": (lambda e: e.evaluate(None), "what is to be evaluated is None"),  # type: ignore[arg-type]
    "a loader's option": (lambda e: e.loader(Pairs(), 12, pin=True), "a loader has no option `pin`"),
    "keep": (lambda e: e.save("nowhere", keep=0), "keep=0 keeps no checkpoint"),
    "a file to resume": (lambda e: e.resume(__file__), "is a file, not a folder"),
    "weights for an optimizer": (
        lambda e: e.optimizer(AdamW, params=[torch.nn.Parameter(torch.zeros(99))]),
        "`AdamW(params=[Parameter con...res_grad=True)])` cannot take a step",
    ),
    "a loader's batch put": (lambda e: changed(e, lambda b: {"z": b["x"]}), "`z` was put into a loader's batch"),
    "of other samples": (lambda e: changed(e, lambda b: {"x": b["x"][:2]}), "was int64[12, 5], and is int64[2, 5]"),
    "of another type": (lambda e: changed(e, lambda b: {"x": b["x"].int()}), "was int64[12, 5], and is int32[12, 5]"),
    "of no tensors": (
        lambda e: changed(e, lambda b: {"y": b["y"].tolist()}),
        "`y` of a loader's batch was made a list",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_told_on_all_ranks(name: str) -> None:
    act, reason = WRONG[name]
    ranks = on_ranks("data", told(act))
    assert reason in ranks[0]
    assert "help: " in ranks[0]
    assert ranks == [ranks[0]] * 2


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("x", r"`embedding` in module `emb` \(conftest.py:\d+"),
        ("y", r"`cross_entropy_loss` in the model \(conftest.py"),
    ],
)
def test_a_number_that_an_operator_does_not_take_has_a_place(name: str, where: str) -> None:
    wrong = {n: torch.full_like(t, 99) if n == name else t for n, t in BATCH.items()}
    (first, _) = on_ranks("data", told(lambda e: trained(e).step(wrong)))
    assert re.match(where + r".*; data_parallel\.ssp:\d+: split model by batch into dp\) failed: IndexError: ", first)
    assert f"`{name}` from 99 to 99" in first


class Notes:
    """A store in memory."""

    def __init__(self) -> None:
        self.notes: dict[str, str] = {}

    def put(self, key: str, text: str) -> None:
        self.notes[key] = text

    def get(self, key: str) -> str | None:
        return self.notes.get(key)


def test_rank_0_speaks_for_all_that_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "SAID_S", 0.01)
    notes = Notes()

    def tell(rank: int, error: EngineError) -> str:
        one = session._Session(rank, owns_group=False)
        one.watchdog = SimpleNamespace(store=notes)  # type: ignore[assignment]
        one._tell(error)
        return capsys.readouterr().err

    all_say, own = EngineError("the loss is nan", "clip"), EngineError("a disk is full")
    assert tell(2, own) == "rank 2: error: a disk is full\n"  # rank 0 says nothing
    assert tell(0, all_say) == "rank 0: error: the loss is nan\n  help: clip\n"
    assert tell(0, EngineError("rank 0: error[E0101]: there is no plan")) == "rank 0: error[E0101]: there is no plan\n"
    notes.notes.clear()
    assert tell(0, all_say)
    assert tell(1, all_say) == "" and tell(2, own) == "rank 2: error: a disk is full\n"


def test_an_optimizer_of_ones_own_is_tried_before_it_steps_on_parts() -> None:
    assert "`Unit` looks at a weight as a whole" in on_ranks("zero3", told(lambda e: e.optimizer(Unit, lr=0.1)))[0]
    assert on_ranks("data", lambda e: type(e.optimizer(Unit, lr=0.1)).__name__) == ["Unit", "Unit"]


@pytest.mark.parametrize("plan", ["stages", "zero1"])
def test_an_optimizer_that_looks_at_all_weights_needs_them_on_each_rank(plan: str) -> None:
    where = r", and this plan has `[\w.]+` (on other ranks|in parts)\n  help: "
    for make, does in (Normalised, "looks at all weights together"), (Noisy, "draws random numbers"):
        said = on_ranks(plan, told(lambda e, make=make: e.optimizer(make, lr=0.1)))[0]  # type: ignore[misc]
        assert re.search(f"`{make.__name__}` {does}{where}", said)


def test_an_optimizer_that_looks_at_all_weights_steps_where_each_rank_has_them() -> None:
    assert on_ranks("data", lambda e: type(e.optimizer(Normalised, lr=0.1)).__name__) == ["Normalised"] * 2


def test_a_tiny_learning_rate_hides_no_look_at_whole_weights() -> None:
    for lr in (1e-7, 0.0):
        adafactor = told(lambda e, lr=lr: e.optimizer(torch.optim.Adafactor, lr=lr))  # type: ignore[misc]
        assert "`Adafactor` looks at a weight as a whole" in on_ranks("zero3", adafactor)[0]


def test_a_trial_draws_nothing_of_the_users_numbers() -> None:
    def work(engine: Engine) -> bool:
        before = torch.random.get_rng_state()
        engine.optimizer(Noisy, lr=0.1)
        return torch.equal(torch.random.get_rng_state(), before)

    assert on_ranks("one", work) == [True]


def test_a_mistake_leaves_the_training_as_it_was() -> None:
    def work(engine: Engine, stumbles: bool) -> Any:
        trained(engine)
        losses = [engine.step(BATCH)]
        if stumbles:
            for act in (WRONG["clip"][0], WRONG["no samples"][0]):
                with pytest.raises(EngineError):
                    act(engine)
        return [*losses, engine.step(BATCH)], saved(engine)

    torch.testing.assert_close(
        on_ranks("stages", lambda e: work(e, True)), on_ranks("stages", lambda e: work(e, False)), rtol=0, atol=0
    )


def test_workers_are_options_of_a_loader() -> None:
    def work(engine: Engine) -> int:
        return engine.loader(Pairs(), 12, num_workers=2, prefetch_factor=3).workers.prefetch_factor or 0

    assert on_ranks("data", work) == [3, 3]


def test_a_last_batch_without_a_program_is_told_when_the_loader_is_made() -> None:
    (first, _) = on_ranks(
        "data", told(lambda e: e.loader(torch.utils.data.Subset(Pairs(), range(17)), 12, drop_last=False))
    )
    assert "there is no program for a batch of 5: there is no program" in first


def test_a_tuple_of_tensors_is_one_batch_to_evaluate() -> None:
    def work(engine: Engine) -> Any:
        pair = tuple(BATCH.values())
        return list(engine._many(pair)), list(engine._many([pair, BATCH])) == [pair, BATCH]

    ((first,), both), _ = on_ranks("data", work)
    assert all(ours is theirs for ours, theirs in zip(first, BATCH.values(), strict=True))
    assert both


@pytest.mark.parametrize("lacks", ["an optimizer", "a learning-rate scheduler", "a loader of its data"])
def test_a_run_that_would_go_on_without_something_is_not_resumed(lacks: str, tmp_path: Path) -> None:
    def make(engine: Engine, lacks: str) -> Any:
        loader = engine.loader(Pairs(), 12) if "loader" not in lacks else None
        if "optimizer" not in lacks:
            engine.optimizer(SGD, lr=0.1)
            scheduler = torch.optim.lr_scheduler.StepLR(engine.optim, 1) if "scheduler" not in lacks else None
            return loader, scheduler
        return loader

    def save(engine: Engine) -> None:
        loader, _ = made = make(engine, "nothing")
        engine.step(next(iter(loader)))
        engine.save(tmp_path, wait=True)
        del made

    def resume(engine: Engine) -> None:
        made = make(engine, lacks)
        engine.resume(tmp_path)
        del made

    on_ranks("data", save)
    ranks = on_ranks("data", told(resume))
    assert f"had {lacks}" in ranks[0]
    assert "before `resume`" in ranks[1]


def test_a_compiled_program_says_which_outputs_it_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf = Leaf((Step("dict", "logits"),))
    table = SimpleNamespace(outputs=[SimpleNamespace(name="logits")], returned=[leaf])
    has = SimpleNamespace(weights=None, batches=[], table=table)
    monkeypatch.setattr(CompiledProgram, "read", lambda *folders: has)
    (tmp_path / "evaluate").mkdir()
    for file in ("plan.ssp", "evaluate/program.json"):
        (tmp_path / file).touch()
    programs = InFolder(tmp_path)
    assert programs.other(Variant("evaluate", outputs=("logits",)), "") is has
    with pytest.raises(EngineError, match="does not return `hidden` \\(it returns its loss, logits\\)"):
        programs.other(Variant("evaluate", outputs=("logits", "hidden")), "")
    with pytest.raises(EngineError, match="a compiled program is for batches of one size"):
        programs.other(Variant("evaluate", sizes=(("seq", 3),)), "seq = 3")
    table.returned = []
    with pytest.raises(EngineError, match=r"(?s)returns its loss alone.*--output logits"):
        programs.other(Variant("evaluate", outputs=None), "")


# -- the beginning and the end -----------------------------------------------------------------------------------------


def test_ranks_are_told_where_their_arguments_differ() -> None:
    def work(world: World, place: Any) -> str:
        with pytest.raises(EngineError) as error:
            _compare({"plan": "zero.ssp", "seed": world.rank // 2}, world.control)
        return str(error.value)

    ranks = run_ranks(3, work)
    assert "the ranks differ in the seed: 0 on rank 0, 1 on rank 2" in ranks[0]
    assert ranks == [ranks[0]] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"plan": 3},
        {"params": "T=2"},
        {"precision": "fp8"},
        {"autocast": torch.float16},
        {"autocast": torch.bfloat16, "precision": "bf16"},
        {"seed": "x"},
        {"generator": "mt"},
    ],
)
def test_wrong_arguments_are_told_with_the_change(wrong: dict[str, Any]) -> None:
    right = {"plan": "zero", "params": None, "autocast": None, "precision": None, "seed": 0, "generator": "hash"}
    _check_arguments(**right)
    with pytest.raises(EngineError) as error:
        _check_arguments(**{**right, **wrong})
    assert error.value.help


def test_a_rank_that_ends_early_is_told_to_those_that_go_on() -> None:
    def work(world: World, place: Any) -> str:
        if world.rank == 1:
            world.control.leave()
            return ""
        with pytest.raises(EngineError, match="on another rank the script has ended"):
            world.control.vote()
        return "told"

    assert run_ranks(3, work) == ["told", "", "told"]
    assert run_ranks(2, lambda world, place: world.control.leave()) == [None, None]


def test_ranks_with_other_numbers_of_samples_are_told() -> None:
    def work(engine: Engine) -> str:
        trained(engine).step(BATCH)
        with pytest.raises(EngineError) as error:
            engine.step(batches(1, 6)[0] if engine.rank else BATCH)
        return str(error.value)

    ranks = on_ranks("data", work)
    assert ranks[0] == ranks[1] and ranks[0].startswith("rank 1 was given a batch of 6, and rank 0 a batch of 12")
