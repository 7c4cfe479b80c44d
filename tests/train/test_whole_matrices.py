"""Optimizers that need whole weights, under plans that cut them: the plan says `by matrix`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import PLANS, batches, net, on_ranks, saved, whole

ALL = "assign model to gpus\n"
WHOLE = {
    "data": f"mesh gpus(dp = 3)\nsplit model by batch into dp\nsplit model.optimizer by matrix into dp\n{ALL}",
    "parts": "mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.weights by row into dp\n"
    f"split model.optimizer by matrix into dp\n{ALL}",
    "scattered": "mesh gpus(dp = 2)\nsplit model by batch into dp\nsplit model.grads by row into dp\n"
    f"split model.optimizer by matrix into dp\n{ALL}",
    "tensor": "mesh gpus(dp = 2, tp = 2)\nsplit model by batch into dp\n"
    'split model by "up.weight.0" into tp where possible\n'
    f"split model.optimizer by matrix into dp, tp\n{ALL}",
    "stages": "mesh gpus(pp = 2, dp = 2)\nsplit model by batch into dp, m = 2\nlet stage = balance(model, 2)\n"
    "assign stage[s] to gpus[pp = s] for s in 0..2\nsplit model.weights by row into dp\n"
    "split model.optimizer by matrix into dp\n",
}
PLANS.update({f"whole_{name}": (text, {}) for name, text in WHOLE.items()})
MATRICES, OTHERS = "up.weight|down.weight", "*.bias|emb.*|norm.*|head.*"
MUON: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
ADAMW: dict[str, Any] = {"lr": 0.01}


def optimizers(engine: Engine) -> list[torch.optim.Optimizer]:
    return [
        engine.optimizer(torch.optim.Muon, weights=MATRICES, **MUON),
        engine.optimizer(torch.optim.AdamW, weights=OTHERS, **ADAMW),
    ]


def joined(engine: Engine) -> list[torch.optim.Optimizer]:
    """The same as one optimizer."""
    return [engine.optimizer(torch.optim.AdamW, groups={MATRICES: {"class": torch.optim.Muon, **MUON}}, **ADAMW)]


def steps(engine: Engine, made: list[torch.optim.Optimizer], given: list[dict[str, torch.Tensor]]) -> None:
    for first, second in zip(*[iter(given)] * 2, strict=True):
        engine.step(first, optimizer=made, update=False, scale=0.5)
        engine.step(second, optimizer=made, scale=0.5, clip=0.5)


def alone() -> dict[str, torch.Tensor]:
    module = net()
    two = [module.up.weight, module.down.weight]
    rest = [p for p in module.parameters() if p.requires_grad and all(p is not q for q in two)]
    made = [torch.optim.Muon(two, **MUON), torch.optim.AdamW(rest, **ADAMW)]
    for first, second in zip(*[iter(batches(8))] * 2, strict=True):
        for batch in (first, second):
            (module(**batch) / 2).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        for optimizer in made:
            optimizer.step()
            optimizer.zero_grad()
    return dict(module.named_parameters())


@pytest.mark.covering
@pytest.mark.parametrize("plan", WHOLE)
@pytest.mark.parametrize("make", [optimizers, joined])
def test_muon_steps_as_on_one_device(plan: str, make: Any) -> None:
    def work(engine: Engine) -> Any:
        steps(engine, make(engine), batches(8))
        return saved(engine)

    found = whole(on_ranks(f"whole_{plan}", work))
    for name, weight in alone().items():
        if name in found:
            torch.testing.assert_close(found[name], weight, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("first", "second"), [("parts", "tensor"), ("stages", "data")])
def test_a_checkpoint_of_whole_matrices_fits_any_plan(first: str, second: str, tmp_path: Path) -> None:
    def begin(engine: Engine) -> None:
        steps(engine, joined(engine), batches(8)[:4])
        engine.save(tmp_path, wait=True)

    def goes_on(engine: Engine) -> Any:
        made = joined(engine)
        engine.resume(tmp_path)
        steps(engine, made, batches(8)[4:])
        return saved(engine)

    on_ranks(f"whole_{first}", begin)
    found = whole(on_ranks(f"whole_{second}", goes_on))
    for name, weight in alone().items():
        if name in found:
            torch.testing.assert_close(found[name], weight, rtol=2e-4, atol=2e-5)


def test_masters_of_half_weights_are_at_home() -> None:
    def work(engine: Engine) -> Any:
        steps(engine, optimizers(engine), batches(8))
        mine = {w.name: w.parameter.dtype for w in engine.ending.optimized}
        return engine.step(batches(1)[0], optimizer=engine.ending.optimizers[0].torch, update=False), mine

    (loss, mine), (other, its) = on_ranks("whole_parts", work, "bf16")
    (plain, _), *_ = on_ranks("one", work, "bf16")
    assert {*mine.values(), *its.values()} == {torch.float32}
    assert mine.keys().isdisjoint(its)
    assert loss == other == pytest.approx(plain, rel=0.02)


def test_a_refusal_names_the_line() -> None:
    def work(engine: Engine) -> str:
        with pytest.raises(Exception, match="looks at a weight as a whole") as caught:
            engine.optimizer(torch.optim.Muon, weights=MATRICES, **MUON)
        return str(caught.value)

    assert "`split model.optimizer by matrix into dp`" in on_ranks("zero3", work)[0]


def test_a_put_reaches_the_home() -> None:
    """An average that is put back is what the optimizer goes on from."""

    def work(engine: Engine) -> Any:
        made = optimizers(engine)
        engine.put({name: torch.zeros_like(x) for name, x in engine.tensors().items() if name.startswith("up.")})
        steps(engine, made, batches(2))
        return saved(engine)

    found, expected = whole(on_ranks("whole_parts", work)), whole(on_ranks("one", work))
    torch.testing.assert_close(found["up.weight"], expected["up.weight"], rtol=2e-4, atol=2e-5)
