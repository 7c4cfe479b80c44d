"""Weights of transformers into a model that no process holds: files of Hugging Face, `engine.load`, and training."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.run.checkpoints.convert import from_safetensors, open_checkpoint, to_safetensors
from ssdsl.run.in_process.run_in_process import run_ranks
from ssdsl.run.rank0_compiler import Live
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import CPU

transformers = pytest.importorskip("transformers")
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 8}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
TOKENS = torch.arange(48).reshape(4, 12) % 64
BATCH = {"input_ids": TOKENS, "labels": TOKENS}
CASES = {  # the plan, what the config has beside the sizes, and whether the model is a function
    "llama": ("tensor_parallel", {}, False),
    "mixtral": ("tensor_parallel", {"num_local_experts": 4}, False),
    "qwen3": ("zero", {"tie_word_embeddings": True}, True),
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("kind", CASES)
def test_a_pretrained_model_trains_as_on_one_device(kind: str, tmp_path: Path) -> None:
    plan, more, by_function = CASES[kind]
    config = transformers.AutoConfig.for_model(kind, **SIZES, **more)
    torch.manual_seed(0)
    alone = transformers.AutoModelForCausalLM.from_config(config)
    alone.save_pretrained(tmp_path / "hf")
    from_safetensors(tmp_path / "hf", tmp_path / "run")

    def make() -> Any:
        return transformers.AutoModelForCausalLM.from_config(config)

    def body(world: World, place: Any) -> list[float]:
        with torch.device("cpu" if by_function else "meta"):
            model = model_of(make if by_function else make(), BATCH)
        assert model.recipes is not None
        programs = Live(plan_path(plan), model, {}, world.control)
        engine = Engine(programs, world, CPU, background=False)
        engine.optimizer(torch.optim.SGD, lr=0.1)
        engine.load(tmp_path / "run")
        return [engine.step(BATCH) for _ in range(3)]

    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    expected = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = alone(**BATCH).loss
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    for losses in run_ranks(2, body):
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-6)


def test_what_is_written_is_read_by_transformers(tmp_path: Path) -> None:
    """Also where its own files have a tensor for each expert, and the module one for all."""
    config = transformers.AutoConfig.for_model("mixtral", **SIZES, num_local_experts=4)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "hf")
    from_safetensors(tmp_path / "hf", tmp_path / "run")
    checkpoint = open_checkpoint(str(tmp_path / "run"))
    assert {name for (_, name) in checkpoint.tensors} == set(model.state_dict())
    to_safetensors(checkpoint, tmp_path / "back", 10**9)
    config.save_pretrained(tmp_path / "back")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())
