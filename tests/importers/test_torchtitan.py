"""torchtitan's configurations of all forms become plans, and nothing of them is lost."""

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ssdsl.compile import compile_source
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported
from ssdsl.importers.recognise import foreign, imported
from ssdsl.importers.titan.asked import by_split_points, by_weights
from ssdsl.importers.titan.keys import ALIASES, LACKING, OF_MODEL, SAYS, known_keys, reason
from ssdsl.importers.titan.models import FAMILIES, NamedModel, named
from ssdsl.importers.torchtitan import read, recognises
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of

ERRORS = Path(__file__).parent.parent / "errors"
SMALL = """\
[job]
dump_folder = "./outputs"  # where it goes

[model]
name = "{name}"
flavor = "{flavor}"

[optimizer]
lr = 3e-4

[training]
local_batch_size = 4
seq_len = 32
steps = 10
max_norm = 1.0

[parallelism]
{parallelism}

[activation_checkpoint]
mode = "{mode}"
"""
NARROW = {
    "hidden": 32,
    "hidden_size": 32,
    "heads": 8,
    "num_attention_heads": 8,
    "keys": 4,
    "num_key_value_heads": 4,
    "head_dim": 4,
    "ffn": 64,
    "intermediate_size": 64,
    "intermediate_size_mlp": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "vocab": 64,
    "vocab_size": 64,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 4,
    "v_head_dim": 4,
    "layers": 8,
    "num_hidden_layers": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of the same kinds that are captured in seconds."""
    whole: Callable[[NamedModel], Mapping[str, Any]] = NamedModel.numbers.fget  # type: ignore[attr-defined]

    def numbers(model: NamedModel) -> dict[str, Any]:
        own = {word: NARROW.get(word, value) for word, value in whole(model).items()}
        heads = own.get("num_attention_heads")
        return own | ({"num_key_value_heads": heads} if "kv_lora_rank" in own else {})

    monkeypatch.setattr(NamedModel, "numbers", property(numbers))


def toml(text: str) -> Foreign:
    return Foreign("train.toml", text, Path("train.toml"))


def small(name: str = "llama3", flavor: str = "8B", mode: str = "none", option: str = "2", **keys: Any) -> str:
    lines = (f"{key} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for key, v in keys.items())
    text = SMALL.format(name=name, flavor=flavor, mode=mode, parallelism="\n".join(lines))
    return f'{text}selective_ac_option = "{option}"\n' if mode == "selective" else text


def compiled(found: Imported, folder: Path) -> None:
    """Compiles a plan, and proves it."""
    assert found.model is not None
    for name, text in (("plan.ssp", found.text), *found.files):
        source = Source(name, text)
        assert format_script(parse(source), source) == text
        (folder / name).write_text(text)
    compile_source(Source("plan.ssp", found.text), graph_of(found.model), {}, folder)


def lines(found: Imported) -> list[str]:
    """The statements of a plan."""
    return [line for line in found.text.split("\n") if line and not line.startswith(("#", "param", "use"))]


def keys_of(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield from keys_of(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]


def becomes(found: Imported, word: str) -> str:
    """What the item that begins with a word becomes."""
    return next(item.becomes for item in found.items if item.written.startswith(word))


# -- what is said ------------------------------------------------------------------------------------------------------

PLANS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "fsdp",
        {"data_parallel_shard_degree": 4},
        ["mesh gpus(dp = D)", "split model by batch into dp", "split model.weights by row into dp"],
    ),
    (
        "hsdp",
        {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 2, "fsdp_reshard_after_forward": "never"},
        ["mesh gpus(rep = R, dp = D)", "split model by batch into rep, dp", "split model.grads by row into dp"],
    ),
    (
        "ddp",
        {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1},
        ["mesh gpus(rep = R)", "split model by batch into rep"],
    ),
    (
        "tensor",
        {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2},
        ["mesh gpus(tp = T)", "tensor_parallel(model)", "sequence_parallel(model)"],
    ),
    (
        "tensor alone",
        {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2, "enable_sequence_parallel": False},
        ["mesh gpus(tp = T)", "tensor_parallel(model)"],
    ),
    (
        "pipeline",
        {"data_parallel_shard_degree": 2, "pipeline_parallel_degree": 2},
        [
            "mesh gpus(pp = S, dp = D)",
            "split model by batch into dp, m = M",
            "split model.grads by row into dp",
            'let layers = each("layers.*")',
            "let first = [4]  # the layer with which each stage but the first begins",
            "let stage = cut(model, S, before = [layers[n] for n in first])",
            "assign stage[s] to gpus[pp = s] for s in 0..S",
            "one_f_one_b(stage, M)",
        ],
    ),
    (
        "interleaved",
        {
            "data_parallel_shard_degree": 1,
            "pipeline_parallel_degree": 2,
            "pipeline_parallel_schedule": "Interleaved1F1B",
            "pipeline_parallel_microbatch_size": 2,
        },
        [
            "mesh gpus(pp = S)",
            "split model by batch into m = M",
            'let layers = each("layers.*")',
            "let first = [2, 5, 7]  # the layer with which each stage but the first begins",
            "let stage = cut(model, S * V, before = [layers[n] for n in first])",
            "assign stage[s] to gpus[pp = s % S] for s in 0..S * V",
            "interleaved(stage, M, V)",
        ],
    ),
]


@pytest.mark.parametrize(("keys", "wanted"), [case[1:] for case in PLANS], ids=[case[0] for case in PLANS])
def test_the_lines_of_a_plan(keys: dict[str, Any], wanted: list[str], tmp_path: Path) -> None:
    found = read(toml(small(**keys)))
    assert [line for line in lines(found) if not line.startswith("assign model")] == wanted
    assert not found.refused
    compiled(found, tmp_path)


TABLES = ["InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble", "DualPipeV", "GPipe", "interleaved_1f1b"]
OTHERS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": name}) for name in TABLES),
    ("three", {"pipeline_parallel_degree": 3, "pipeline_parallel_schedule": "Interleaved1F1B"}),
    ("points", {"pipeline_parallel_degree": 2, "pipeline_parallel_split_points": ["layers.3"]}),
    (
        "parts",
        {
            "pipeline_parallel_degree": 2,
            "module_fqns_per_model_part": [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]],
        },
    ),
    ("each", {"pipeline_parallel_degree": 2, "pipeline_parallel_layers_per_stage": 5}),
    ("context", {"context_parallel_degree": 2, "context_parallel_rotate_method": "alltoall"}),
    ("gathered", {"context_parallel_degree": 2, "tensor_parallel_degree": 2}),
]


@pytest.mark.parametrize("keys", [case[1] for case in OTHERS], ids=[case[0] for case in OTHERS])
def test_what_is_asked_for_is_proved(keys: dict[str, Any], tmp_path: Path) -> None:
    found = read(toml(small(data_parallel_shard_degree=2, **keys)))
    assert not found.refused, found.refused
    compiled(found, tmp_path)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["llama3", "qwen3", "deepseek_v3", "llama4", "gpt_oss"])
def test_each_model_is_captured_and_cut(name: str, tmp_path: Path) -> None:
    flavor = next(flavor for flavor in FAMILIES[name][-1].flavors)
    experts = {"expert_parallel_degree": 2} if FAMILIES[name][-1].experts else {}
    text = small(name, flavor, "selective", "op", data_parallel_shard_degree=2, tensor_parallel_degree=2, **experts)
    found = read(toml(text))
    assert not found.refused, found.refused
    compiled(found, tmp_path)


@pytest.mark.parametrize(
    ("experts", "own", "context", "wanted"),
    [
        (2, 1, 1, ["experts into tp"]),
        (4, 1, 1, ["experts into ep", "experts into tp"]),
        (2, 2, 1, ["experts into ep", "ffn into tp"]),
        (4, 2, 2, ["experts into ep", "experts into cp", "ffn into tp"]),
    ],
)
def test_experts_borrow_devices(experts: int, own: int, context: int, wanted: list[str], tmp_path: Path) -> None:
    """Of those of the batch, of the sequence, and unless experts are cut like layers, of a layer."""
    keys = {"expert_parallel_degree": experts, "expert_tensor_parallel_degree": own, "context_parallel_degree": context}
    keys |= {"tensor_parallel_degree": 2, "data_parallel_shard_degree": 2}
    found = read(toml(small("deepseek_v3", "debugmodel", **keys)))
    assert [line.removeprefix("split experts by ") for line in lines(found) if "split experts" in line] == wanted
    assert {item.written for item in found.refused} <= {"parallelism.context_parallel_degree = 1"}
    compiled(found, tmp_path)


def test_experts_that_no_axes_have() -> None:
    found = read(toml(small("deepseek_v3", "debugmodel", expert_parallel_degree=3, data_parallel_shard_degree=4)))
    assert "3 replicas" in becomes(found, "parallelism.expert_parallel_degree") and "experts" not in "".join(
        lines(found)
    )


@pytest.mark.parametrize(
    ("mode", "option", "line"),
    [
        ("none", "2", None),
        ("full", "2", 'recompute model["layers.*"]'),
        ("selective", "1", 'recompute model["layers.*"]'),
        ("selective", "2", 'recompute [each("layers.*")[2 * n + 1] for n in 0..4]'),
        ("selective", "3", 'recompute [each("layers.*")[3 * n + 2] for n in 0..2]'),
        (
            "selective",
            "op",
            'recompute model["layers.*"] - (model.scaled_dot_product_attention | model["layers.**.q_proj"]'
            ' | model["layers.**.v_proj"] | model["layers.**.gate_proj"] | model["layers.**.down_proj"])',
        ),
    ],
)
def test_what_is_computed_again(mode: str, option: str, line: str | None, tmp_path: Path) -> None:
    found = read(toml(small(mode=mode, option=option, data_parallel_shard_degree=2)))
    assert [text for text in lines(found) if text.startswith("recompute")] == ([line] if line else [])
    compiled(found, tmp_path)


def test_weights_on_the_host(tmp_path: Path) -> None:
    text = small(data_parallel_shard_degree=2).replace("steps = 10", "steps = 10\nenable_cpu_offload = true")
    found = read(toml(text))
    assert "assign model.weights to host" in lines(found) and not found.refused
    compiled(found, tmp_path)


def test_experts_that_are_whole_stay_on_the_device(tmp_path: Path) -> None:
    keys = {"data_parallel_shard_degree": 2, "expert_parallel_degree": 2}
    text = small("deepseek_v3", "debugmodel", **keys).replace("steps = 10", "steps = 10\nenable_cpu_offload = true")
    found = read(toml(text))
    assert "assign others.weights to host" in lines(found) and not found.refused
    compiled(found, tmp_path)


@pytest.mark.parametrize(("stages", "layers_", "wanted"), [(4, 6, (1, 3, 5)), (2, 32, (16,)), (4, 61, (15, 31, 47))])
def test_stages_by_weights(stages: int, layers_: int, wanted: tuple[int, ...]) -> None:
    assert by_weights(stages, layers_, 1, 1) == wanted


def test_too_few_layers() -> None:
    assert by_weights(8, 4, 1, 1) is None and by_split_points(8, 4) is None
    found = read(toml(small(data_parallel_shard_degree=1, pipeline_parallel_degree=16)))
    assert "8 layers are too few for 16 stages" in becomes(found, "parallelism.pipeline_parallel_degree")


def test_gradients_are_added_up() -> None:
    text = small(data_parallel_shard_degree=2).replace("seq_len = 32", "seq_len = 32\nglobal_batch_size = 32")
    found = read(toml(text))
    assert "param M = 4" in found.text and found.model is not None and found.model.endswith("batch=32")
    wrong = read(toml(text.replace("= 32\nglobal_batch_size = 32", "= 32\nglobal_batch_size = 12")))
    assert becomes(wrong, "training.global_batch_size") == "8 samples in one pass do not divide it"


# -- nothing is lost ---------------------------------------------------------------------------------------------------


def test_every_key_of_a_file_is_in_one_list_with_its_line() -> None:
    text = small(data_parallel_shard_degree=-1, pipeline_parallel_schedule="GPipe", tensor_paralel_degree=2)
    found = read(toml(text))
    assert sorted(item.written.partition(" = ")[0] for item in found.items) == sorted(keys_of(tomllib.loads(text)))
    for item in found.items:
        assert item.written.partition(" = ")[0].rpartition(".")[2] in text.split("\n")[item.line - 1]
    assert {item.written.partition(" ")[0] for item in found.refused} == {
        "parallelism.tensor_paralel_degree",
        "parallelism.pipeline_parallel_schedule",
    }
    assert "tensor_parallel_degree" in becomes(found, "parallelism.tensor_paralel_degree")


def test_every_key_that_is_known_has_one_meaning() -> None:
    for key in known_keys():
        canonical = ALIASES.get(key, key)
        homes = [canonical in SAYS, canonical in OF_MODEL, canonical in LACKING or reason(canonical) is not None]
        assert sum(homes) <= 1, key


@pytest.mark.parametrize("key", sorted({*SAYS, *ALIASES}))
def test_a_key_with_a_value_that_is_none_is_listed(key: str) -> None:
    section, _, name = key.rpartition(".")
    text = f'[model]\nname = "llama3"\nflavor = "8B"\n[{section}]\n{name} = "nonsense"\n'
    found = read(toml(text if section != "model" else f"[model]\n{name} = 3\n[training]\nsteps = 1\n"))
    assert sum(item.written.startswith(f"{key} ") for item in found.items) == 1


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("parallelism.enable_async_tensor_parallel", "true", "nothing yet"),
        ("parallelism.expert_parallel_degree", "2", "no experts: ignored there, too"),
        ("parallelism.context_parallel_load_balancer", '"ptrr"', "zigzag"),
        ("model.converters", '["float8"]', "8 bits"),
        ("optimizer.early_step_in_backward", "true", "behind all of backward"),
        ("fault_tolerance.enable", "true", "devices of a run are fixed"),
        ("model.norm_type", '"layernorm"', "RMS norm"),
        ("parallelism.pipeline_parallel_schedule", '"Interleaved1F1B"', "the pipeline has one device"),
        ("activation_checkpoint.mode", '"memory_budget"', "by name"),
    ],
)
def test_what_is_refused(key: str, value: str, said: str) -> None:
    section, _, name = key.rpartition(".")
    text = f"[{section}]\n{name} = {value}\n"
    if section == "model":
        text = f'{text}name = "llama3"\n'
    else:
        text = f'[model]\nname = "llama3"\n{text}'
    found = read(toml(f"{text}[training]\nsteps = 2\n" if section != "training" else text))
    assert [said in item.becomes for item in found.refused] == [True], found.refused


def test_what_is_off_is_not_refused() -> None:
    text = small(enable_async_tensor_parallel=False, disable_loss_parallel=False, expert_parallel_degree=1)
    text += '[float8]\nenable_fsdp_float8_all_gather = false\nfilter_fqns = ["output"]\n'
    assert not read(toml(text)).refused


def test_the_keys_of_the_first_versions() -> None:
    """With degrees in `training`, and stages as many as micro-batches."""
    found = read(
        toml(
            '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 8\nseq_len = 32\n'
            "data_parallel_degree = 2\ntensor_parallel_degree = 2\ncompile = true\n"
            "[experimental]\npipeline_parallel_degree = 4\n"
            'pipeline_parallel_split_points = "layers.2,layers.4,layers.6"\n'
        )
    )
    assert "param M = 4" in found.text and "let first = [2, 4, 6]" in found.text and not found.refused


def test_a_model_that_is_not_known() -> None:
    found = read(toml(small("flux", "flux-dev", "full", data_parallel_shard_degree=2)))
    assert found.model is None and "--model" in becomes(found, "model.name")
    assert "recompute model" in lines(found)
    other = read(toml(small("llama3", "9B")))
    assert "8B, 70B" in becomes(other, "model.flavor")


@pytest.mark.parametrize("name", ["llama3", "simple_fsdp.llama3", "llama3_simple_fsdp", "llama3_ft"])
def test_models_of_experiments(name: str) -> None:
    found = named(name, "8B_flex")
    assert found is not None and found.flavor == "8B" and "causal" in found.different


# -- commands ----------------------------------------------------------------------------------------------------------


def command(text: str) -> Foreign:
    return Foreign(text, text)


def test_flags_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.toml").write_text(small(data_parallel_shard_degree=-1, tensor_parallel_degree=2))
    monkeypatch.chdir(tmp_path)
    found = read(
        command(
            "NGPU=8 CONFIG_FILE=./train.toml ./run_train.sh --parallelism.tensor_parallel_degree=4 --compile.enable "
            "--model.converters float8 mx --training.no-deterministic --parallelism.pipeline-parallel-degree 1"
        )
    )
    assert 'param T = 4 "tensor' in found.text and 'param D = 2 "replicas"' in found.text
    assert becomes(found, "parallelism.tensor_parallel_degree = 2") == "another value follows"
    written = [item.written for item in found.items]
    assert "--model.converters float8 mx" in written and "--training.no-deterministic" in written
    assert "NGPU=8" in written and "CONFIG_FILE=./train.toml" in written and "./run_train.sh" in written
    assert [item.written for item in found.refused] == ["--model.converters float8 mx"]


def test_a_script_with_variables(tmp_path: Path) -> None:
    """As torchtitan's own: defaults of variables, and two commands of which one is for a dry run."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.toml").write_text(small(data_parallel_shard_degree=-1))
    script = tmp_path / "scripts" / "run_train.sh"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/bash\nset -ex\nNGPU=${NGPU:-"4"}\nCONFIG=${CONFIG_PATH:-"./configs/train.toml"}\n'
        'if [ -n "$DRY" ]; then\n  python -m torchtitan.train --job.config_file "${CONFIG}" --comm.mode=fake_backend\n'
        "else\n  torchrun --nproc_per_node=${NGPU} --rdzv_backend c10d \\\n"
        '    -m torchtitan.train --job.config_file ${CONFIG} --training.steps 5 "$@"\nfi\n'
    )
    found = read(foreign(str(script)))
    assert 'param D = 4 "replicas"' in found.text and not found.refused
    assert becomes(found, "python -m") == "another command of the script"
    assert becomes(found, "training.steps = 10") == "another value follows"
    steps = next(item for item in found.items if item.written == "--training.steps 5")
    assert steps.line == 8


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ("torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file a.toml", True),
        ("CONFIG_FILE=a.toml ./run_train.sh", True),
        ("MODULE=llama3 CONFIG=llama3_8b ./run_train.sh", True),
        ("--parallelism.tensor_parallel_degree 4 --training.steps 3", True),
        ("torchrun pretrain_gpt.py --tensor-model-parallel-size 2", False),
        ("/home/me/torchtitan/train.toml", False),
        ("hf:qwen3,tp=4", False),
    ],
)
def test_commands_are_recognised(text: str, is_ours: bool) -> None:
    assert recognises(command(text)) == is_ours


def test_files_are_recognised() -> None:
    assert recognises(toml(small())) and not recognises(toml('about = "hosts"\n[devices.v100]\nname = "V100"\n'))
    assert not recognises(toml('[project]\nname = "a"\n[tool.ruff]\n'))


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(small())
    found = imported(str(tmp_path / "train.toml"))
    assert found.kind == "torchtitan's TOML" and "# Imported from train.toml" in found.text


# -- Python configs ----------------------------------------------------------------------------------------------------

REGISTRY = '''\
"""Configs of a model."""
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.trainer import Trainer
from . import model_registry, more

STEPS = 1000


def llama3_small() -> Trainer.Config:
    """A small one."""
    spec = model_registry("8B", attn_backend="flex")
    return Trainer.Config(
        model_spec=spec,
        hf_assets_path="./assets",
        optimizer=default_adamw(lr=8e-4),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=8 * 32, max_context_length=32, steps=STEPS),
        parallelism=ParallelismConfig(data_parallel_shard_degree=2),
        activation_checkpoint=SelectiveAC.Config(),
    )


def llama3_wide(degree: int = 2) -> Trainer.Config:
    config = llama3_small()
    _tensor(config, degree=4)
    config.training.steps = 2 * STEPS
    config.activation_checkpoint = FullAC.Config()
    config.model_spec = model_registry("70B")
    if unknown():
        config.training.steps = 3
    more(config)
    return config


def _tensor(config, degree, again=False):
    config.parallelism.tensor_parallel_degree = degree
    if again:
        config.parallelism.tensor_parallel_degree = 8
'''
MORE = """\
def more(config):
    config.parallelism.pipeline_parallel_degree = 2
    config.parallelism.num_pp_microbatches = 4
"""


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "torchtitan" / "models" / "llama3"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(f"raise SystemExit('it runs')\n{MORE}")
    (folder / "config_registry.py").write_text(f"raise SystemExit('it runs')\n{REGISTRY}")
    return folder / "config_registry.py"


def test_a_config_is_read_and_not_run(registry: Path, tmp_path: Path) -> None:
    given = f"{registry}:llama3_small"
    found = read(Foreign(given, given))
    assert recognises(Foreign(given, given)) and not found.refused
    assert "param D = 2" in found.text and found.model is not None and found.model.endswith("batch=16")
    assert becomes(found, "training.steps=1000") == "`ssdsl run --steps`"
    compiled(found, tmp_path)


def test_lines_that_change_a_config(registry: Path) -> None:
    """Through functions of this file and of others; what is replaced, or is not plain, is listed with its line."""
    given = f"{registry}:llama3_wide"
    found = read(Foreign(given, given))
    assert "param T = 4" in found.text and "param S = 2" in found.text and "param M = 4" in found.text
    assert 'recompute model["layers.*"]' in lines(found)
    assert becomes(found, "training.steps=1000") == "another value follows"
    assert becomes(found, "training.steps=2000") == "`ssdsl run --steps`"
    assert becomes(found, 'model_registry("8B")') == "another value follows"
    assert [(item.written, item.line) for item in found.refused] == [("if unknown(): ...", 30)]


def test_the_flags_behind_a_config(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(registry.parents[3])
    found = read(command("MODULE=llama3 CONFIG=llama3_small ./run_train.sh --parallelism.tensor_parallel_degree 2"))
    assert "param T = 2" in found.text and not found.refused
    found = read(command("python -m torchtitan.train --module llama3 --config llama3_small --debug.seed 4"))
    assert "param D = 2" in found.text and becomes(found, "--debug.seed 4") == "`ssdsl run --seed`"


# -- mistakes ----------------------------------------------------------------------------------------------------------


def wrong(folder: Path, registry: Path) -> Iterator[tuple[str, Foreign]]:
    yield "E0720", toml('[model]\nname = "llama3\n[training]\nsteps = 1\n')
    yield "E0720", toml("[training]\nsteps = 1\nsteps = 2\n[model]\n")
    yield "E0721", command("CONFIG_FILE=nowhere.toml ./run_train.sh")
    yield "E0721", command("python -m torchtitan.train --module nothing --config llama3_8b")
    given = "torchtitan/models/llama3/config_registry.py"
    yield "E0722", Foreign(f"{given}:llama3_smal", "")
    yield "E0722", Foreign(given, "")
    (folder / "train.toml").write_text(small(tensor_parallel_degree=4))
    yield "E0723", command("NGPU=6 CONFIG_FILE=train.toml ./run_train.sh")


def test_mistakes(
    tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = dict[str, list[str]]()
    for code, source in wrong(tmp_path, registry):
        with pytest.raises(PlanError) as raised:
            read(source)
        assert [d.code for d in raised.value.diagnostics] == [code]
        texts.setdefault(code, []).append(render(raised.value.diagnostics[0]) + "\n")
    for code, shown in texts.items():
        golden(ERRORS / f"{code}.err", "\n".join(shown))


def test_a_command_without_a_configuration() -> None:
    with pytest.raises(PlanError, match="E0700"):
        read(command("NGPU=4 ./run_train.sh"))


def test_the_names_of_flavors_are_unlike() -> None:
    for families in FAMILIES.values():
        known = [flavor.lower() for family in families for flavor in family.flavors]
        assert len(known) == len({*known})
        for family in families:
            for flavor, row in family.flavors.items():
                assert len(row) == len(family.fields.split()), flavor
    assert all(re.fullmatch(r"[\w.]+", key) for key, _ in itertools.chain(SAYS.items(), ALIASES.items()))
