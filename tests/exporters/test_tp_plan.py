"""Compiled plans as `tp_plan`s: derived from layouts, and run by transformers itself."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ssdsl.compile import compile_source
from ssdsl.exporters.tp_plan import TpPlan, tp_plan_of
from ssdsl.model.captured import ModelRequest, captured
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from ssdsl.tp_plans.entries import PlanKind, model_plans
from tests.cli.commands import call

ERRORS = Path(__file__).parent.parent / "errors"
SIZES = "hidden_size=32,intermediate_size=64,num_attention_heads=4,num_key_value_heads=2,vocab_size=96,batch=4,seq=8"
QWEN = f"hf:qwen3,num_hidden_layers=2,head_dim=8,{SIZES}"
MOE = f"hf:qwen3_moe,num_hidden_layers=2,num_experts=4,num_experts_per_tok=2,moe_intermediate_size=32,{SIZES}"
PHI = f"hf:phi3,num_hidden_layers=1,pad_token_id=0,{SIZES}"
GPT = "gpt:tiny,layers=1"
TENSOR = """\
use tensor_parallel: tensor_parallel
mesh gpus(tp = 2)
tensor_parallel(model)
assign model to gpus
"""


def exported(model: str, text: str = TENSOR) -> TpPlan:
    found = captured(ModelRequest(model))
    program = compile_source(Source("plan.ssp", text), found.graph, {}, None).program
    return tp_plan_of(program, model_plans(found.model.module))


def own(model: str) -> Mapping[str, str]:
    plans = model_plans(captured(ModelRequest(model)).model.module)
    return {name: style for name, style in plans.merged[PlanKind.TENSOR].items() if name in plans.names}


@pytest.mark.parametrize("model", [QWEN, MOE], ids=["qwen3", "qwen3_moe"])
def test_tensor_parallelism_is_the_plan_that_transformers_has(model: str) -> None:
    assert exported(model).styles == own(model)


def test_what_is_packed_and_what_is_read_whole() -> None:
    found = exported(PHI)
    assert found.styles["model.layers.*.mlp.gate_up_proj"] == "packed_colwise"
    assert found.styles["model.layers.*.self_attn.o_proj"] == "rowwise_split_input"
    assert found.styles["model.layers.*.self_attn.qkv_proj"] == "replicate"  # which its own plan cuts
    assert "model.layers.*.self_attn" in found.whole


def test_a_part_of_tensor_parallelism_leaves_the_rest_whole() -> None:
    text = "mesh gpus(dp = 2, tp = 2)\nsplit model by batch into dp\nsplit model by ffn into tp\nassign model to gpus\n"
    found = exported(QWEN, text)
    cut = {name.rpartition(".")[2]: style for name, style in found.styles.items() if style != "replicate"}
    assert cut == {"gate_proj": "colwise", "up_proj": "colwise", "down_proj": "rowwise"}


STAGES = """\
use pipeline: one_f_one_b
mesh gpus(pp = 2)
split model by batch into m = 2
let stage = balance(model, 2)
assign stage[s] to gpus[pp = s] for s in 0..2
one_f_one_b(stage, 2)
"""
WRONG = {
    "E0715": {
        "no linear layer": (GPT, TENSOR),
        "experts": (MOE, "mesh gpus(tp = 2)\nsplit model by experts into tp\nassign model to gpus\n"),
        "layers differ": (
            QWEN,
            'mesh gpus(tp = 2)\nsplit model["model.layers.0.mlp"] by ffn into tp\nassign model to gpus\n',
        ),
    },
    "E0717": {
        "stages": (QWEN, STAGES),
        "nothing cut": (QWEN, "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n"),
        "two axes": (
            QWEN,
            "mesh gpus(a = 2, b = 2)\nsplit model by ffn into a\nsplit model by heads into b\nassign model to gpus\n",
        ),
    },
}


@pytest.mark.parametrize("code", WRONG)
def test_what_no_style_says_is_refused(code: str, golden: Callable[[Path, str], None]) -> None:
    texts = []
    for case, (model, text) in WRONG[code].items():
        with pytest.raises(PlanError) as caught:
            exported(model, text)
        assert {d.code for d in caught.value.diagnostics} == {code}
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / f"{code}.err", "\n".join(texts))


def test_the_command_writes_a_file_that_transformers_takes(tmp_path: Path) -> None:
    (tmp_path / "p.ssp").write_text(TENSOR)
    words = ["export", "p.ssp", "--model", QWEN, "--tp-plan", "--out", "plan.json"]
    done = call(*words, folder=tmp_path)
    assert done.returncode == 0 and "wrote plan.json" in done.stderr, done.stderr
    assert json.loads((tmp_path / "plan.json").read_text()) == own(QWEN)
    assert call(*words, folder=tmp_path).returncode == 0  # over its own file
    (tmp_path / "plan.json").write_text('{"other": 1}')
    assert "E0" in call(*words, folder=tmp_path).stderr and json.loads((tmp_path / "plan.json").read_text()) == {
        "other": 1
    }
    assert "--tp-plan" in call(*words[:4], folder=tmp_path).stderr


def test_another_model_is_refused(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    (tmp_path / "p.ssp").write_text(TENSOR)
    (tmp_path / "net.py").write_text(NET)
    done = call("export", "p.ssp", "--model", "net.py:net", "--tp-plan", folder=tmp_path)
    assert done.returncode == 1
    golden(ERRORS / "E0716.err", done.stderr)


NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x))).square().mean()

def net():
    return Net(), {"x": torch.randn(4, 8)}
"""

RUN = """\
import sys, json
import torch
from pathlib import Path
from bench.hfplans.theirs import disturbed, seen
from ssdsl.model.load import load

torch.set_num_threads(1)
model, folder = load(sys.argv[1]), Path(sys.argv[2])
disturbed(model.module)
model.module.save_pretrained(folder)
right = json.loads((folder / "plan.json").read_text())
wrong = {n: "replicate" if n.endswith("q_norm") else style for n, style in right.items()}
for plan in (right, wrong):
    found = seen(type(model.module), folder, model.batches[0], plan, 120.0, in_memory=True)
    print(json.dumps([found.failed, found.is_loss_equal, sorted(found.differ)]))
"""


@pytest.mark.slow
def test_transformers_runs_it_on_two_processes(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(exported(QWEN).styles))
    words = [sys.executable, "-c", RUN, QWEN, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 2, done.stderr
    assert lines[0] == ["", True, []]
    norms = [f"model.layers.{n}.self_attn.q_norm.weight" for n in range(2)]
    assert lines[1] == ["", True, norms]  # what the comparison says of it, in tests/tp_plans
