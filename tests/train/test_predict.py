"""`predict` returns all that the forward returns: in tuples and dictionaries, weights, and what no weight computes."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import Net, batches
from tests.train.test_live import SIZE, Lines, live

PLANS: list[tuple[str, dict[str, int]]] = [
    ("data_parallel", {"D": 2}),
    ("tensor_parallel", {"T": 2}),
    ("pipeline", {"M": 2}),
    ("zero", {"D": 2, "Z": 3}),
]


class Telling(Net):
    """Returns much beside its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.arange(5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        first = self.norm(self.emb(x))
        second = first + self.down(torch.relu(self.up(first)))
        logits = self.head(second)
        mask = y > 2
        each = torch.nn.functional.cross_entropy(logits.mT, y, reduction="none")
        loss = (each * mask).sum() / mask.sum()
        return {
            "loss": loss,
            "logits": logits,
            "hidden": (first, second, [second, None]),
            "counts": {"kept": mask.sum(), "mask": mask, "even": x % 2 == 0},
            "weight": self.up.weight,
            "tied": self.emb.weight,
            "unused": self.unused.weight,
            "steps": self.steps,
            "tokens": x,
            "ones": torch.ones(3),
            "width": 12,
            "nothing": None,
        }


def _module() -> Telling:
    torch.manual_seed(0)
    return Telling()


def _without_the_rest(result: Any) -> Any:
    """What a forward returned, without what is no tensor."""
    match result:
        case Mapping():
            found = {name: _without_the_rest(part) for name, part in result.items()}
            return {name: part for name, part in found.items() if part is not None}
        case tuple() | list():
            return type(result)(map(_without_the_rest, result))
        case torch.Tensor():
            return result.detach()
    return None


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("plan", "params"), PLANS, ids=str)
def test_all_that_the_forward_returns(plan: str, params: dict[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    given = [{name: t[:n] for name, t in batches(1, SIZE)[0].items()} for n in (SIZE, 5, 1)]

    def work(engine: Engine) -> Any:
        named = engine.predict(given[1], "hidden", "hidden.2.0", "counts.kept", "weight")
        return [engine.predict(batch) for batch in given], named, engine.predict(given[0], "hidden.1", gather="first")

    ranks = live(Telling, plan, params, 2, work)
    module = _module().eval()
    whole, odd, single = (_without_the_rest(module(**batch)) for batch in given)
    hidden = odd["hidden"]
    named = {
        "hidden": hidden,
        "hidden.2.0": hidden[2][0],
        "counts.kept": odd["counts"]["kept"],
        "weight": odd["weight"],
    }
    for rank, (all_of_them, by_name, first) in enumerate(ranks):
        _check(all_of_them, [whole, odd, single])
        _check(by_name, named)
        _check(first, {"hidden.1": whole["hidden"][1]} if rank == 0 else {})
    said = capsys.readouterr().err
    assert "warning[E0425]: left out of the outputs, as no tensors: `width` is an int" in said
    assert "nothing" not in said


def test_a_batch_of_a_loader_for_training() -> None:
    """The evaluation, or an output, may need parts that training does not: they are loaded then."""

    def work(engine: Engine) -> Any:
        (batch,) = engine.loader(Lines(SIZE), SIZE)
        return (
            engine.predict(batch, "counts.mask", "tokens"),
            engine.evaluate(batch),
            engine.predict(dict(batch), "tokens"),
        )

    (given,), module = batches(1, SIZE), _module().eval()
    expected = _without_the_rest(module(**given))
    for named, loss, of_dictionary in live(Telling, "pipeline", {"M": 2}, 2, work):
        _check(named, {"counts.mask": expected["counts"]["mask"], "tokens": given["x"]})
        _check(of_dictionary, {"tokens": given["x"]})
        assert loss == pytest.approx(float(expected["loss"]), rel=1e-5)


def _check(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        return
    assert type(found) is type(expected) and len(found) == len(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        found, expected = found.values(), expected.values()
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            _check(one, other)
