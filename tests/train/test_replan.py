"""Training goes on under another plan, without a disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.model.load.from_module import model_of
from ssdsl.run.in_process.run_in_process import run_ranks
from ssdsl.run.rank0_compiler import Live
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import AXES, CPU, batches, net, saved, whole

ALL = "assign model to gpus\n"
PLANS = {
    "one": "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n",
    "tensor": f'mesh gpus(tp = 2)\nsplit model by "up.weight.0" into tp where possible\n{ALL}',
    "stages": "mesh gpus(pp = 2)\nsplit model by batch into m = 2\nlet stage = balance(model, 2)\n"
    "assign stage[s] to gpus[pp = s] for s in 0..2\n",
    "zero1": f"mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.optimizer by row into dp\n{ALL}",
    "zero3": f"mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.weights by row into dp\n{ALL}",
    "portions": f"mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.grads by row into dp = [3, 1]\n{ALL}",
    "copied": f"mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.optimizer by matrix into dp\n{ALL}",
    "whole": "mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.weights by row into dp\n"
    f"split model.optimizer by matrix into dp\n{ALL}",
}
Work = Callable[[Engine], Any]


def live(plan: str, work: Work, folder: Path) -> list[Any]:
    """What `work` gives with the engine of each of two ranks; the plans are files."""
    for name, text in PLANS.items():
        (folder / f"{name}.ssp").write_text(text)

    def body(world: World, place: Any) -> Any:
        model = model_of(net(), batches(1)[0], AXES)
        engine = Engine(Live(folder / f"{plan}.ssp", model, {}, world.control), world, CPU, background=False)
        found = work(engine)
        engine.close()
        return found

    return run_ranks(2, body)


def trained(engine: Engine, folder: Path, *plans: str) -> Any:
    """Two steps, then for each further plan two steps more, with a schedule of the learning rate."""
    made = engine.optimizer(torch.optim.AdamW, lr=1e-2, groups={"*bias": {"weight_decay": 0.0}})
    schedule = torch.optim.lr_scheduler.StepLR(made, 3, 0.5)
    losses, given = [], iter(batches(8))
    for plan in (None, *plans):
        if plan is not None:
            engine.replan(folder / f"{plan}.ssp")
        for _ in range(2):
            losses.append(engine.step(next(given), clip=1.0))
            schedule.step()
    losses.append(engine.evaluate(batches(1)))
    return losses, saved(engine), made.param_groups[0]["lr"]


@pytest.mark.covering
@pytest.mark.parametrize(
    "plans",
    [
        ("tensor", "stages", "tensor"),
        ("zero3", "one", "zero1"),
        ("zero1", "whole", "stages"),
        ("whole", "copied"),
        ("portions", "zero3", "portions"),
    ],
    ids="-".join,
)
def test_training_goes_on_as_if_nothing_had_changed(plans: tuple[str, ...], tmp_path: Path) -> None:
    first, *others = plans
    ranks = live(first, lambda engine: trained(engine, tmp_path, *others), tmp_path)
    alone = live("one", lambda engine: trained(engine, tmp_path, *["one"] * len(others)), tmp_path)
    assert ranks[0][0] == pytest.approx(alone[0][0], rel=1e-4)
    assert ranks[0][2] == alone[0][2]
    found, expected = (whole([weights for _, weights, _ in those]) for those in (ranks, alone))
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=2e-3, atol=2e-5)


def test_only_what_a_rank_has_not_travels(tmp_path: Path) -> None:
    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.AdamW, lr=1e-2)
        engine.step(batches(1)[0])
        held = sum(x.numel() * 4 for x in engine.tensors().values())
        return (
            held,
            engine.replan(tmp_path / "zero3.ssp"),
            engine.replan(tmp_path / "one.ssp"),
            engine.replan(tmp_path / "one.ssp"),
        )

    (held, to_parts, to_copies, nowhere), _ = live("one", work, tmp_path)
    weights = sum(p.numel() * 4 for p in net().parameters() if p.requires_grad) - 4 * (12 * 12 + 12)  # without unused
    assert to_parts == nowhere == 0
    assert to_copies == pytest.approx(3 * weights / 2, rel=0.05)  # half of the weights, and of both moments
    assert held >= weights


def test_mistakes_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "three.ssp").write_text("mesh gpus(dp = 3)\nsplit model by batch into dp\nassign model to gpus\n")
    (tmp_path / "wrong.ssp").write_text("mesh gpus(dp = 2)\nassign modle to gpus\n")

    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=1e-2)
        said = []
        for name in ("three", "wrong", "none"):
            with pytest.raises(EngineError) as caught:
                engine.replan(tmp_path / f"{name}.ssp")
            said.append(str(caught.value))
        engine.step(batches(1)[0], update=False)
        with pytest.raises(Exception, match="added up") as caught:
            engine.replan(tmp_path / "zero3.ssp")
        return said, engine.step(batches(2)[1])

    (said, loss), _ = live("one", work, tmp_path)
    assert "is for 3 devices, and the number of processes is 2" in said[0]
    assert "E0" in said[1]
    assert "none" in said[2]
    assert loss > 0


def test_a_loop_over_batches_of_the_old_plan_ends_with_words(tmp_path: Path) -> None:
    def work(engine: Engine) -> Any:
        engine.optimizer(torch.optim.SGD, lr=1e-2)
        data = [{name: x[0] for name, x in batch.items()} for batch in batches(24)]
        loader = engine.loader(data, 12)
        losses = []
        with pytest.raises(EngineError, match="the plan has changed"):
            for batch in loader:
                losses.append(engine.step(batch))
                engine.replan(tmp_path / "tensor.ssp")
        losses += [engine.step(batch) for batch in loader]
        return losses

    first, second = live("zero3", work, tmp_path)
    assert first == second
    assert len(first) == 2
