"""`hf:TYPE` and DistributedConfig files as plans: nothing is lost, and what is written proves."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers.distributed import DistributedConfig

from ssdsl.compile import compile_source
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported
from ssdsl.importers.recognise import foreign, imported
from ssdsl.importers.transformers_plans import read, recognises
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.tp_plans.entries import PlanKind, model_plans

ERRORS = Path(__file__).parent.parent / "errors"
SIZES = "hidden_size=32,intermediate_size=64,num_attention_heads=4,num_key_value_heads=2,vocab_size=96,batch=4,seq=8"
QWEN = f"hf:qwen3,num_hidden_layers=2,head_dim=8,{SIZES}"
MOE = f"hf:qwen3_moe,num_hidden_layers=3,num_experts=4,num_experts_per_tok=2,moe_intermediate_size=32,{SIZES}"


def asked(given: str) -> Imported:
    return read(Foreign(given, given))


def proved(found: Imported) -> None:
    """Compiles the plan for its model, which raises PlanError for what cannot be proved."""
    assert found.model is not None and found.text.startswith(f"# for: --model {found.model}\n")
    source = Source("plan.ssp", found.text)
    assert format_script(parse(source), source) == found.text
    graph = captured(ModelRequest(found.model)).graph
    compile_source(source, graph, {}, None)


def entries_of(model: str) -> list[str]:
    """Every entry of a model's plans, by transformers itself."""
    plans = model_plans(captured(ModelRequest(model)).model.module)
    return [f"{kind}: {name}" for kind in PlanKind for name in plans.merged[kind]]


@pytest.mark.parametrize(
    "widths",
    [
        "tp=2",
        "fsdp=2",
        "pp=2",
        "tp=2,fsdp=2",
        "ep=2,fsdp=2",
        "tp=2,ep=2",
        "tp=2,ep=4,fsdp=4",
        "tp=2,pp=2",
        "replicas=2,fsdp=2",
    ],
)
def test_every_entry_is_in_one_list_and_the_plan_proves(widths: str) -> None:
    found = asked(f"{MOE},{widths}")
    written = [item.written for item in found.items]
    for entry in entries_of(MOE):
        assert sum(w.startswith(f"{entry}: ") for w in written) == 1, entry
    for word in widths.split(","):
        assert [item.becomes for item in found.said if item.written == word] != [""]
    assert len(written) == len(set(written)) and all(item.becomes for item in found.items)
    proved(found)


def test_an_entry_says_by_which_dimension_the_plan_cuts() -> None:
    said = {item.written: item.becomes for item in asked(f"{QWEN},tp=2").said}
    assert said["tp: model.layers.*.self_attn.q_proj: colwise"].endswith("tensor_parallel(model): heads")
    assert said["tp: model.layers.*.mlp.down_proj: rowwise"].endswith("tensor_parallel(model): ffn")
    assert said["tp: lm_head: colwise_gather_output"].endswith("tensor_parallel(model): vocab")
    assert "follows" in said["tp: model.layers.*.self_attn.q_norm: replicated_with_grad_allreduce"]


def test_what_the_plan_leaves_whole_is_refused() -> None:
    refused = {item.written for item in asked(f"{QWEN},tp=4").refused}  # two heads of keys, in parts by heads_per_group
    odd = asked(
        f"hf:llama,num_hidden_layers=2,head_dim=8,{SIZES.replace('intermediate_size=64', 'intermediate_size=66')},tp=4"
    )
    assert not refused
    assert {item.written.split(":")[1].rpartition(".")[2] for item in odd.refused} == {
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    proved(odd)


def test_uneven_stages_are_those_of_transformers() -> None:
    found = asked(f"{MOE},pp=2")
    assert "let first = [2]" in found.text  # the first stage has the layer more


def test_without_widths_the_plan_is_for_two_devices() -> None:
    found = asked(QWEN)
    assert "param T = 2" in found.text and "No width was asked for" in found.text
    proved(found)


def test_a_model_without_a_plan_is_told() -> None:
    found = asked("hf:gpt2,n_layer=2,n_embd=32,n_head=4,vocab_size=96,bos_token_id=1,eos_token_id=1,batch=4,seq=8,tp=2")
    assert any("no plan for it" in item.becomes for item in found.refused)
    proved(found)


# -- files -------------------------------------------------------------------------------------------------------------


def saved(folder: Path, **keys: object) -> Path:
    path = folder / "distributed.json"
    path.write_text(json.dumps(keys))
    return path


def test_a_file_as_transformers_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "distributed.json"
    DistributedConfig(tp_size=2, fsdp_size=2).to_json_file(path)
    given = f"{QWEN},plan={path}"
    found = asked(given)
    keys = json.loads(path.read_text())
    written = [item.written for item in found.items]
    assert all(sum(w.startswith(f'"{key}": ') for w in written) == 1 for key in keys)
    assert "tensor_parallel(model)" in found.text and "split model.weights by row into dp" in found.text
    proved(found)


def test_a_file_with_a_type_is_recognised(tmp_path: Path) -> None:
    path = saved(tmp_path, model_type="llama", tp_size=4)
    assert recognises(foreign(str(path)))
    assert imported(str(path)).model == "hf:llama"
    assert not recognises(foreign(str(saved(tmp_path, hidden_size=4, model_type="llama"))))


def test_what_transformers_drops_or_leaves_out_is_refused(tmp_path: Path) -> None:
    plan = {"model.layers.*.mlp.gate_proj": "colwise", "model.layers.*.mlp.gate": "colwise", "lm_head": "colwize"}
    path = saved(tmp_path, tp_size=2, tp_pla="auto", tp_size_=3, enable_sequence_parallel=True, tp_plan=plan)
    found = asked(f"{QWEN},plan={path}")
    refused = {item.written: item.becomes for item in found.refused}
    assert "drops this key" in refused['"tp_size_": 3'] and "`tp_size`" in refused['"tp_size_": 3']
    assert "drops this key" in refused['"tp_pla": "auto"']
    assert '"enable_sequence_parallel": true' in refused
    assert "names nothing" in refused["tp: model.layers.*.mlp.gate: colwise"]
    assert "colwise" in refused["tp: lm_head: colwize"]
    silent = {item.written: item.becomes for item in found.silent}
    assert silent["tp: lm_head: colwise_gather_output"] == "the request overrides it"


# -- mistakes ----------------------------------------------------------------------------------------------------------


def no_type(folder: Path) -> str:
    return str(saved(folder, tp_size=2).relative_to(folder))


def no_json(folder: Path) -> str:
    (folder / "distributed.json").write_text('{"tp_size": 2,')
    return f"{QWEN},plan=distributed.json"


WRONG: dict[str, dict[str, str | Callable[[Path], str]]] = {
    "E0710": {"none": "hf:qwen3,tp=0", "a word": "hf:qwen3,tp=all"},
    "E0711": {"no devices": f"{MOE},ep=2", "no multiple": f"{MOE},tp=2,ep=3,fsdp=3"},
    "E0712": {"in a file": no_type, "none": "hf:"},
    "E0713": {"no JSON": no_json, "missing": f"{QWEN},plan=none.json"},
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_is_said(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = []
    for case, given in WRONG[code].items():
        with pytest.raises(PlanError) as caught:
            read(foreign(given if isinstance(given, str) else given(tmp_path)))
        assert {d.code for d in caught.value.diagnostics} == {code}
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / f"{code}.err", "\n".join(texts))
