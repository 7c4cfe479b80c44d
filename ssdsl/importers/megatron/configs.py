"""Configs that flags of Megatron stand in or name: DeepSpeed's JSON, the YAML of `--yaml-cfg` and of Megatron's tests,
and the overrides of Megatron-Bridge."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ssdsl.importers.errors import UnreadableConfig
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.megatron.arguments import FlagOutcome, FlagSetting, flag_of, refused, silent
from ssdsl.importers.megatron.flags import FLAGS
from ssdsl.importers.megatron.shell.follow import ShellWord
from ssdsl.text.diagnostic import PlanError

OFF = ("false", "none", "null", "")

# Keys of DeepSpeed's config that say something, by the flag that a rule reads; a key is what stands before its dots.
DEEPSPEED_RULED = {
    "train_batch_size": "global-batch-size",
    "train_micro_batch_size_per_gpu": "micro-batch-size",
    "zero_optimization.stage": "json:zero_optimization.stage",
    "zero_optimization.offload_optimizer.device": "json:zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_param.device": "json:zero_optimization.offload_param.device",
}
DEEPSPEED_SILENT = {
    "zero_optimization": "how messages are sent and gathered in buckets: always beside computation",
    "fp16": "`ssdsl run --precision fp16`",
    "bf16": "`ssdsl run --precision bf16`",
    "bfloat16": "`ssdsl run --precision bf16`",
    "data_types": "the type of gradients: `ssdsl simulate --fp32-grads` counts it",
    "communication_data_type": "the type of gradients: `ssdsl simulate --fp32-grads` counts it",
    "gradient_clipping": "`ssdsl run --clip`",
    "gradient_accumulation_steps": "micro-batches: what replicas and micro-batches leave of the batch",
    "gradient_predivide_factor": "the loss is the mean over the batch",
    "prescale_gradients": "the loss is the mean over the batch",
    "optimizer": "the optimizer and its schedule, in your own loop: `engine.optimizer`",
    "scheduler": "the optimizer and its schedule, in your own loop: `engine.optimizer`",
    "aio": "no disks: nothing is read of them",
    "activation_checkpointing": "flags say what is computed again",
    "steps_per_print": "logs and profiles of a run: `ssdsl run --profile`",
    "wall_clock_breakdown": "logs and profiles of a run: `ssdsl run --profile`",
    "flops_profiler": "logs and profiles of a run: `ssdsl run --profile`",
    "tensorboard": "logs and profiles of a run: `ssdsl run --profile`",
    "wandb": "logs and profiles of a run: `ssdsl run --profile`",
    "csv_monitor": "logs and profiles of a run: `ssdsl run --profile`",
    "comms_logger": "logs and profiles of a run: `ssdsl run --profile`",
    "dump_state": "logs and profiles of a run: `ssdsl run --profile`",
    "memory_breakdown": "logs and profiles of a run: `ssdsl run --profile`",
    "checkpoint": "checkpoints: `ssdsl run --save`, `--save-every`, `--resume`",
    "zero_allow_untested_optimizer": "any optimizer",
    "zero_force_ds_cpu_optimizer": "any optimizer",
}
DEEPSPEED_REFUSED = "no part of a plan here"

# Fields of configs of megatron-core that have another name than their flag; with `!` the flag says the opposite.
FIELDS = {
    "add_bias_linear": "!disable-bias-linear",
    "share_embeddings_and_output_weights": "!untie-embeddings-and-output-weights",
    "gated_linear_unit": "swiglu",
    "num_moe_experts": "num-experts",
    "num_query_groups": "num-key-value-heads",
    "layernorm_epsilon": "norm-epsilon",
    "layernorm_zero_centered_gamma": "apply-layernorm-1p",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "seq_len_interpolation_factor": "rotary-seq-len-interpolation-factor",
    "should_pad_vocab": "!no-pad-vocab-size",
    "qk_pos_emb_head_dim": "qk-pos-emb-head-dim",
    "max_steps": "train-iters",
    "average_in_collective": "ddp-average-in-collective",
    "grad_reduce_in_fp32": "accumulate-allreduce-grads-in-fp32",
    "bucket_size": "ddp-bucket-size",
    "overlap_p2p_comm": "overlap-p2p-communication",
    "masked_softmax_fusion": "!no-masked-softmax-fusion",
    "gradient_accumulation_fusion": "!no-gradient-accumulation-fusion",
    "persist_layer_norm": "!no-persist-layer-norm",
    "bias_dropout_fusion": "!no-bias-dropout-fusion",
    "apply_rope_fusion": "!no-rope-fusion",
    "bias_activation_fusion": "!no-bias-gelu-fusion",
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
    "vp": "num-virtual-stages-per-pipeline-rank",
    "ep": "expert-model-parallel-size",
    "et": "expert-tensor-parallel-size",
    "etp": "expert-tensor-parallel-size",
    "gb": "global-batch-size",
    "mb": "micro-batch-size",
    "sl": "seq-length",
    "ms": "train-iters",
    "save_dir": "save",
    "load_dir": "load",
    "warmup_iters": "lr-warmup-iters",
}
# What stands in sections of a config of Megatron-Bridge, where no flag is known for it.
SECTIONS = {
    "model": "no flag of Megatron-LM is known for it",
    "train": "a matter of the loop: `ssdsl run --steps`, `--eval-every`, or your own",
    "validation": "a matter of the loop: `ssdsl run --steps`, `--eval-every`, or your own",
    "optimizer": "the optimizer and its schedule, in your own loop: `engine.optimizer`",
    "scheduler": "the optimizer and its schedule, in your own loop: `engine.optimizer`",
    "dataset": "the data: `ssdsl run --data`, or a loader of your own",
    "tokenizer": "the data: `ssdsl run --data`, or a loader of your own",
    "logger": "logs and profiles of a run: `ssdsl run --profile`",
    "profiling": "logs and profiles of a run: `ssdsl run --profile`",
    "checkpoint": "checkpoints: `ssdsl run --save`, `--save-every`, `--resume`",
    "rng": "random numbers: `ssdsl run --seed`",
    "dist": "how processes find each other and what sends: `ssdsl run --backend`, `torchrun`",
    "ddp": "how messages are sent and gathered in buckets: always beside computation",
    "comm_overlap": "how messages are sent: always beside computation that does not wait for them",
    "mixed_precision": "`ssdsl run --precision`",
    "rerun_state_machine": "what happens after a failure: `ssdsl run --max-restarts`",
    "ft": "what happens after a failure: `ssdsl run --max-restarts`",
}
RECIPES = ("recipe", "model", "model_family_name", "model_recipe_name", "m", "mr")
RECIPE = "a recipe is code of Megatron-Bridge: its model and the widths that are not written here are unknown"
BRIDGE_SILENT = {
    "mode": "what is trained",
    "step-func": "the function of Megatron-Bridge that computes the loss",
    "step_func": "the function of Megatron-Bridge that computes the loss",
    "dataset": SECTIONS["dataset"],
    "peft": "all weights train",
}
Fixed = tuple[FlagSetting, FlagOutcome]


# -- DeepSpeed ---------------------------------------------------------------------------------------------------------


def deepspeed_config(text: str, name: str) -> tuple[list[FlagSetting], list[Fixed]]:
    """The keys of DeepSpeed's config, with dots between those of its sections: those that rules read, and the others.
    Variables that nobody knows may stand in it."""
    bare = re.sub(r"(?<=[:,\[])\s*(\$\{?[\w@]+\}?)\s*(?=[,}\]\n])", r' "\1"', text)
    bare = re.sub(r"(?<=[:,\[])\s*([A-Z][A-Z_0-9]+)\s*(?=[,}\]\n])", r' "$\1"', bare)  # what `sed` is to replace
    bare = re.sub(r"(?m)^\s*//.*$", "", bare)
    bare = re.sub(r",(\s*[}\]])", r"\1", bare)
    try:
        found = json.loads(bare)
    except ValueError as error:
        at = f"line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise _unreadable(name, "config of DeepSpeed", at, "write JSON there") from None
    if not isinstance(found, dict):
        raise _unreadable(name, "config of DeepSpeed", "it is no object", "write a JSON object there")
    ruled, fixed = [], list[Fixed]()
    off = {key for key, own in found.items() if isinstance(own, dict) and own.get("enabled") in (False, "false")}
    for key, value in _leaves(found):
        setting = FlagSetting(DEEPSPEED_RULED.get(key, ""), (_shown(value),), f"{key}: {_shown(value)}", 0, name)
        section = key.partition(".")[0]
        if setting.flag:
            ruled.append(setting)
        elif section in DEEPSPEED_SILENT:
            fixed.append((setting, silent(DEEPSPEED_SILENT[section])))
        else:
            is_off = section in off or value in (False, "false")
            fixed.append((setting, silent("not enabled") if is_off else refused(DEEPSPEED_REFUSED)))
    return ruled, fixed


def _leaves(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested mappings, with their keys."""
    for key, value in found.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{name}.")
        else:
            yield name, value


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)


def _unreadable(name: str, kind: str, reason: str, change: str) -> PlanError:
    return PlanError(UnreadableConfig(None, name, kind, reason, change))


# -- YAML --------------------------------------------------------------------------------------------------------------


def is_yaml(source: Foreign) -> bool:
    """Whether a source is a YAML file with the arguments of Megatron."""
    keys = r"(?m)^\s*(MODEL_ARGS\s*:|(--)?(tensor[_-]model[_-]parallel[_-]size|num[_-]attention[_-]heads)\s*:\s*\S)"
    is_named = source.path is not None and source.path.suffix in (".yaml", ".yml")
    return is_named and re.search(keys, source.text) is not None


def yaml_settings(source: Foreign) -> tuple[list[FlagSetting], list[Fixed]]:
    """The settings of a YAML file. Raises PlanError."""
    name = source.path.name if source.path is not None else "the file"
    try:
        import yaml
    except ImportError:
        change = "pip install pyyaml"
        raise _unreadable(name, "config that can be read", "PyYAML is not installed", change) from None
    try:
        found = yaml.safe_load(source.text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise _unreadable(name, "YAML", reason, "correct it there") from None
    if not isinstance(found, dict):
        raise _unreadable(name, "config of Megatron", "it is no mapping", "give a file with MODEL_ARGS")
    own = next((key for key in ("MODEL_ARGS", "BASE_MODEL_ARGS") if isinstance(found.get(key), dict)), None)
    settings, fixed = list[FlagSetting](), list[Fixed]()
    for key, value in _leaves({own: found[own]} if own else found):
        line = _line(source.text, key.rpartition(".")[2])
        if own or key.startswith("--"):
            setting, verdict = _yaml_flag(key.rpartition(".")[2], value, line)
        else:
            setting, verdict = field(key, _shown(value), f"{key}: {_shown(value)}", line)
        if verdict is None:
            settings.append(setting)
        else:
            fixed.append((setting, verdict))
    for key, value in _leaves({key: value for key, value in found.items() if own and key != own}):
        setting = FlagSetting("", (), f"{key}: {_shown(value)}", _line(source.text, key.rpartition(".")[2]))
        is_other = key.startswith("MODEL_ARGS_")
        why = (
            refused("another run of the test: give its flags for a plan of its own")
            if is_other
            else silent("what the test does beside training")
        )
        fixed.append((setting, why))
    return settings, fixed


def _yaml_flag(key: str, value: Any, line: int) -> tuple[FlagSetting, FlagOutcome | None]:
    """A flag with its value; a switch that is `false` is left out, as Megatron's tests do."""
    flag = flag_of(key)
    kind = FLAGS[flag].values if flag in FLAGS else "="
    written = f"{key}: {_shown(value)}"
    if isinstance(value, bool) or value is None:
        setting = FlagSetting(flag, () if kind == "" or value is True else (_shown(value),), written, line)
        return setting, None if value is True else silent("false: what it is without this flag")
    values = [_shown(item) for item in value] if isinstance(value, list) else [_shown(value)]
    if kind in ("=+", "=*", "=3") and not isinstance(value, list):
        values = values[0].split()
    return FlagSetting(flag, tuple(values), written, line), None


def _line(text: str, key: str) -> int:
    """The line on which a key stands."""
    found = re.search(rf"(?m)^[^\S\n]*[\"']?{re.escape(key)}[\"']?\s*:", text)
    return text.count("\n", 0, found.start()) + 1 if found else 0


# -- Megatron-Bridge ---------------------------------------------------------------------------------------------------


def field(path: str, value: str, written: str, line: int, file: str = "") -> tuple[FlagSetting, FlagOutcome | None]:
    """A field of a config of megatron-core as the flag that sets it, or what becomes of it, if none does."""
    section, name = path.partition(".")[0].lstrip("+~"), path.rpartition(".")[2]
    flag = FIELDS.get(name, name.replace("_", "-"))
    is_opposite, flag = flag.startswith("!"), flag.removeprefix("!")
    if name == "activation_func" and "." in path:
        is_known = any(word in value.lower() for word in ("silu", "gelu", "swish"))
        flag = "squared-relu" if "relu" in value.lower() and not is_known else "openai-gelu" if "gelu" in value else ""
        if not flag:
            return FlagSetting("", (value,), written, line, file), silent("SiLU, of a gated feed-forward")
        return FlagSetting(flag, (), written, line, file), None
    own = FLAGS.get(flag)
    is_model = section in ("model", "ddp", "train", "comm_overlap", "language_model", "model_parallel", "")
    if own is None or ("." in path and own.is_ruled and not is_model and section in SECTIONS):
        setting = FlagSetting("", (value,), written, line, file)
        why = SECTIONS.get(section, "no flag of Megatron is known for it")
        return setting, refused(why) if section == "model" or section not in SECTIONS else silent(why)
    is_off = value.lower() in OFF
    if own.values == "":
        setting = FlagSetting(flag, (), written, line, file)
        return setting, silent("what it is without this") if is_off != is_opposite else None
    setting = FlagSetting(flag, tuple(value.strip("[]").replace("'", "").split(",")), written, line, file)
    if own.values == "=" and len(setting.values) > 1:
        setting = FlagSetting(flag, (value,), written, line, file)
    return setting, silent("none: what it is without this") if is_off else None


def bridge_settings(words: tuple[ShellWord, ...]) -> tuple[list[FlagSetting], list[Fixed]]:
    """The settings of a command line of Megatron-Bridge: flags of its scripts, and overrides `section.field=value`."""
    settings, fixed = list[FlagSetting](), list[Fixed]()
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        name, sign, value = word.text.partition("=")
        if not word.text.startswith("-"):
            if not sign:
                own = FlagSetting("", (), word.text, word.line, word.file)
                fixed.append((own, silent("no flag and no override")))
                continue
            setting, verdict = field(name, value, word.text, word.line, word.file)
        else:
            key = name.lstrip("-")
            flag = flag_of(FIELDS.get(key, key))
            has_value = (
                not sign and at < len(words) and not words[at].text.startswith("-") and "=" not in words[at].text
            )
            if has_value and not (flag in FLAGS and FLAGS[flag].values == ""):
                value, at = words[at].text, at + 1
            written = word.text if sign or not value else f"{name} {value}"
            setting = FlagSetting(
                flag if key not in RECIPES else "", (value,) if value else (), written, word.line, word.file
            )
            verdict = refused(RECIPE) if key in RECIPES else None
            if verdict is None and flag not in FLAGS:
                known = BRIDGE_SILENT.get(key)
                verdict = silent(known) if known else refused("no flag of Megatron is known for it")
        if verdict is None:
            settings.append(setting)
        else:
            fixed.append((setting, verdict))
    return settings, fixed
