"""`--model hf:...`: models of transformers by their type or config, each mistake with its place."""

import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.fuzz.trial import try_plan
from bench.models.plans import PLANS
from ssdsl.model.load import load
from ssdsl.model.load.hf import transformers_library
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime.options import Training
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

pytest.importorskip("transformers")
ERRORS = Path(__file__).parent.parent.parent / "errors"
TRAINING = Training(2, optimizer="sgd", lr=0.02)
WIDTHS = "vocab_size=64,hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=4"
DECODER = f"{WIDTHS},num_key_value_heads=2,batch=8,seq=8"
SPECS = {
    "llama": f"hf:llama,{DECODER}",
    "mistral": f"hf:mistral,{DECODER}",
    "qwen3": f"hf:qwen3,head_dim=8,{DECODER}",
    "mixtral": f"hf:mixtral,num_local_experts=4,{DECODER}",
    "gpt2": "hf:gpt2,vocab_size=64,n_embd=32,n_layer=2,n_head=4,seq=8",
    "bert": f"hf:bert,{WIDTHS},seq=8",
    "t5": "hf:t5,vocab_size=64,d_model=32,d_kv=8,d_ff=64,num_layers=2,num_heads=4,seq=8,target=6",
    "vit": f"hf:vit,{WIDTHS.partition(',')[2]},image_size=32,patch_size=8",
    "swin": "hf:swin,embed_dim=32,depths=2-2,num_heads=2-4,image_size=32,window_size=4",
}


CELLS = [  # half of them where CI is set
    pytest.param(family, plan, marks=[] if (f + p) % 2 == 0 else pytest.mark.slow)
    for f, family in enumerate(SPECS)
    for p, plan in enumerate(PLANS)
]


@pytest.fixture(scope="module")
def family(request: pytest.FixtureRequest) -> tuple[Model, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = load(SPECS[request.param])
        return model, capture(model)


@pytest.mark.thinned(16)
@pytest.mark.parametrize(("family", "plan"), CELLS, indirect=["family"], scope="module")
def test_families_train_as_one_device(family: tuple[Model, Any], plan: str) -> None:
    """With the dropout that each has by default."""
    outcome = try_plan(*family, PLANS[plan], TRAINING)
    assert outcome.kind == "equal", outcome.text


def test_a_whole_model_under_autocast() -> None:
    model = load(f"{SPECS['gpt2']},autocast=bf16")
    graph = capture(model)
    dtypes = {o.kind: graph.values[o.outputs[0].value].dtype for o in graph.operators}
    assert dtypes["addmm"] == dtypes["scaled_dot_product_attention"] == "bfloat16"
    assert dtypes["layer_norm"] == "float32" and model.module.lm_head.weight.dtype == torch.float32
    outcome = try_plan(model, graph, PLANS["tensor"], TRAINING)
    assert outcome.kind == "equal", outcome.text


def test_tasks_and_axes() -> None:
    bert = SPECS["bert"]
    assert type(load(bert).module).__name__ == "BertForMaskedLM"
    assert type(load(f"{bert},task=causal").module).__name__ == "BertLMHeadModel"
    assert load(f"{bert},task=sequence,num_labels=3").axes["labels"] == ("batch",)
    assert load(f"{bert},task=token").axes["labels"] == ("batch", "seq")
    assert load(SPECS["t5"]).axes["labels"] == ("batch", "target")
    assert load(SPECS["vit"]).axes["pixel_values"] == ("batch", "channel", "height", "width")
    for task in ("sequence", "token"):
        model = load(f"{bert},task={task}")
        assert model.module(**model.batches[0]).loss.isfinite()


def test_sizes_of_the_batch_and_the_format() -> None:
    model = load(f"{SPECS['llama']},batch=2,dtype=bf16,tie_word_embeddings=true,eos_token_id=none", seed=3)
    assert model.batches[0]["input_ids"].shape == (2, 8)
    assert model.module.lm_head.weight is model.module.model.embed_tokens.weight
    assert {p.dtype for p in model.module.parameters()} == {torch.bfloat16}
    again = load(f"{SPECS['llama']},batch=2,dtype=bf16,tie_word_embeddings=True,eos_token_id=None", seed=3)
    assert torch.equal(model.module.lm_head.weight, again.module.lm_head.weight)
    assert torch.equal(model.batches[1]["input_ids"], again.batches[1]["input_ids"])


def test_a_field_in_which_layers_differ_is_an_option() -> None:
    kinds = transformers_library("hf:gemma4_text").CONFIG_MAPPING
    if "gemma4_text" not in kinds:
        pytest.skip("this transformers has no config whose layers differ")
    model = load(f"hf:gemma4_text,head_dim=16,{DECODER}", meta=True)
    assert model.module.model.layers[0].self_attn.head_dim == 16


def test_a_large_model_is_built_without_its_numbers() -> None:
    model = load("hf:llama,num_hidden_layers=2")
    assert model.is_meta and model.recipes is not None and model.can_run
    assert load(SPECS["llama"], meta=True).is_meta and not load(SPECS["llama"]).is_meta


def test_a_model_without_numbers_is_given_none_of_very_large_images(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("swin:tiny", meta=True).can_run
    monkeypatch.setattr("ssdsl.model.load.hf_tasks.HUGE", 8 * 3 * 64 * 64 - 1)
    assert not load("swin:tiny", meta=True).can_run and load("swin:tiny").can_run


def test_a_config_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(SPECS["gpt2"]).module.config.save_pretrained(tmp_path)
    folder = tmp_path / "a,b"
    folder.mkdir()
    (tmp_path / "config.json").rename(folder / "config.json")
    model = load(f"hf:{folder}/config.json,n_layer=1,batch=4")
    assert len(model.module.transformer.h) == 1 and model.module.config.n_embd == 32
    assert model.batches[0]["labels"].shape[0] == 4
    monkeypatch.chdir(tmp_path)
    (folder / "config.json").rename("mine.json")
    assert load("hf:mine.json").module.config.n_layer == 2
    mine = {**json.loads(Path("mine.json").read_text()), "architectures": ["GPT2ForTokenClassification"]}
    Path("mine.json").write_text(json.dumps(mine))
    assert type(load("hf:mine.json").module).__name__ == "GPT2ForTokenClassification"


def written(text: str) -> Callable[[Path], str]:
    def spec(folder: Path) -> str:
        (folder / "config.json").write_text(text)
        return "hf:config.json"

    return spec


WRONG: dict[str, dict[str, str | Callable[[Path], str]]] = {
    "E0313": {
        "misspelt": "hf:lama",
        "nothing": "hf:",
        "in a file": written('{"model_type": "xxxxxxxxxx"}'),
    },
    "E0314": {
        "missing": "hf:none/config.json",
        "a name of the hub": "hf:meta-llama/Llama-3-8B",
        "no JSON": written('{"model_type": "llama",\n "hidden_size" 3}'),
        "no type": written('{"hidden_size": 3}'),
    },
    "E0318": {
        "not this one": "hf:llama,task=image",
        "none": "hf:sam",
        "other inputs": "hf:wav2vec2,task=sequence",
    },
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_is_said(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = []
    for case, spec in WRONG[code].items():
        with pytest.raises(PlanError) as caught:
            load(spec if isinstance(spec, str) else spec(tmp_path))
        assert {d.code for d in caught.value.diagnostics} == {code}
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / f"{code}.err", re.sub(r"version \S+ knows \d+", "version 5 knows 800", "\n".join(texts)))


@pytest.mark.parametrize(
    ("spec", "change"),
    [
        ("hf:llama4", "take its model of text: hf:llama4_text"),
        ("hf:musicgen", "write a function that returns the module and its inputs: path/to/file.py:function"),
        ("hf:llama,hidden_size=30,num_attention_heads=4", "change one of these numbers"),
    ],
)
def test_a_type_that_cannot_be_built_is_no_internal_error(spec: str, change: str) -> None:
    with pytest.raises(PlanError) as caught:
        load(spec)
    (found,) = caught.value.diagnostics
    assert (found.code, getattr(found, "change", "")) == ("E0304", change)


def test_training_keeps_no_keys_and_values_for_generation() -> None:
    assert not load(SPECS["llama"]).module.config.use_cache


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PlanError, match="E0305"):
        load("hf:llama")
