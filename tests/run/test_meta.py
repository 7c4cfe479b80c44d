"""A model whose weights no process makes whole: each rank makes its part, and the run equals the single device."""

from collections.abc import Callable

import pytest
import torch

import ssdsl.model.load.unmaterialised as deferred
import ssdsl.runtime.program.recipes as recipe
from ssdsl.compile import compile_plan
from ssdsl.lang.assets import assets_folder
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.run.in_process.run_in_process import program_of, run_in_process
from ssdsl.run.verify.verify import verify_dumps
from ssdsl.runtime.options import Training


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(deferred, "LARGE", 64)
    return load("gpt:tiny,layers=2,hidden=32,seq=16,vocab=64,batch=8,dropout=0.1", meta=True)


def test_ranks_make_their_parts(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []
    part: Callable[..., torch.Tensor] = recipe.Recipes.part

    def noted(self: recipe.Recipes, name: str, places: list[torch.Tensor], device: torch.device) -> torch.Tensor:
        found = part(self, name, places, device)
        made.append((name, found.numel()))
        return found

    monkeypatch.setattr(recipe.Recipes, "part", noted)
    compiled = compile_plan(assets_folder("examples") / "megatron.ssp", capture(model), {})
    training = Training(2, optimizer="sgd", lr=0.1)
    finished = run_in_process(program_of(compiled.program, model), training)
    sizes = {n: p.numel() for n, p in model.module.named_parameters()}
    split = "transformer.h.0.mlp.c_fc.weight"
    assert {n for name, n in made if name == split} == {sizes[split] // 2}, "half of it each"
    assert not any(c.differs for c in verify_dumps(model, training, finished.losses, finished.dumps))
    assert all(p.is_meta for p in model.module.parameters()), "nobody made the module's weights in this process"


def test_the_weights_are_those_of_the_model_as_it_is(model: Model) -> None:
    plain = load("gpt:tiny,layers=2,hidden=32,seq=16,vocab=64,batch=8,dropout=0.1")
    state = dict(model.with_numbers().module.state_dict())
    assert all(torch.equal(state[name], tensor) for name, tensor in plain.module.state_dict().items())
