"""A config of DeepSpeed by itself: state in parts (ZeRO), micro-batches, tensor parallelism, state on the host.

It names no model, so the plan is for any. The keys are those of deepspeed.ai/docs/config-json and of
`deepspeed/runtime/constants.py` (github.com/deepspeedai/DeepSpeed, Apache-2.0).
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ssdsl.importers.errors import NotJson
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported, Item
from ssdsl.importers.widths import Keeps, Meeting, Net, PlanLines, Widths, plan_of
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span

OWN = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
STATES = {0: None, 1: Keeps.OPTIMIZER, 2: Keeps.GRADS, 3: Keeps.WEIGHTS}
OFF: tuple[object, ...] = (False, None, 0, "none", "", [], {})
AUTO = "auto"  # what the trainer of transformers fills in

# What a key fills of `Widths`.
SAYS: Mapping[str, tuple[str, ...]] = {
    "zero_optimization.stage": ("state",),
    "zero_optimization.mics_shard_size": ("shards",),
    "zero_optimization.offload_optimizer.device": ("to_host",),
    "zero_optimization.offload_param.device": ("to_host",),
    "zero_optimization.cpu_offload": ("to_host",),
    "gradient_accumulation_steps": ("micro",),
    "tensor_parallel.autotp_size": ("tensor",),
    "sequence_parallel_size": ("context", "attention"),
    "train_batch_size": ("data",),
    "train_micro_batch_size_per_gpu": ("data",),
}
# What asks for something that a plan from here does not do, unless it is off.
LACKING: Mapping[str, str] = {
    "zero_optimization.zero_hpz_partition_size": "write `keep model.weights by row into local through step` with an "
    "axis of the devices of a node",
    "zero_optimization.zero_quantized_weights": "weights travel in their own type; `compress` is of activations",
    "zero_optimization.zero_quantized_gradients": "gradients travel in their own type",
    "zero_optimization.zero_quantized_nontrainable_weights": "weights travel in their own type",
    "zero_optimization.mics_hierarchical_params_gather": "weights are gathered in one step",
    "activation_checkpointing.cpu_checkpointing": "write `assign model.activations to host`",
    "activation_checkpointing.partition_activations": "cut them along the sequence: `sequence_parallel(model)`",
    "sparse_gradients": "gradients are dense",
    "sparse_attention": "the attention is the model's",
    "compression_training": "weights in few bits: nothing yet",
    "quantize_training": "weights in few bits: nothing yet",
    "progressive_layer_drop": "the model's: a layer that is left out is a condition",
    "elasticity": "the devices of a run are fixed: `engine.replan` changes a plan between two steps",
    "hybrid_engine": "plans train",
    "autotuning": "`ssdsl search` looks for widths and micro-batches",
    "zenflow": "nothing yet",
    "zero_optimization.zenflow": "nothing yet",
}
SILENT: Mapping[str, str] = {
    "how state is sent, gathered and kept meanwhile: always beside computing": "zero_optimization "
    "communication_data_type prescale_gradients gradient_predivide_factor seq_parallel_communication_data_type "
    "disable_allgather fp32_allreduce",
    "`ssdsl run --precision bf16`, or fp16": "bf16 bfloat16 fp16 amp torch_autocast data_types",
    "`ssdsl run --clip`": "gradient_clipping",
    "`ssdsl run --lr`; `engine.optimizer(torch.optim.AdamW, ...)` takes the rest": "optimizer scheduler "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
    "logs and profiles: `ssdsl profile`": "steps_per_print wall_clock_breakdown dump_state flops_profiler comms_logger "
    "tensorboard wandb csv_monitor comet memory_breakdown",
    "`ssdsl run --save`, `--save-every`, `--resume`": "checkpoint nebula load_universal_checkpoint",
    "what is computed again is said by name: `recompute model[...]`": "activation_checkpointing",
    "the data is its loader's: `ssdsl run --data`": "data_efficiency curriculum_learning dataloader_drop_last",
    "a pipeline is cut in the plan: `balance`, `cut`": "pipeline",
    "no disks": "aio",
    "which devices of a layer are used is said in the plan": "tensor_parallel",
    "`ssdsl run --kernels compiled`": "compile",
    "`ssdsl run --find-nan`": "check_grad_overflow eigenvalue",
}


def recognises(foreign: Foreign) -> bool:
    """Whether a source is a config of DeepSpeed."""
    text = foreign.text.lstrip()
    return foreign.path is not None and text.startswith("{") and any(re.search(rf'"{key}"\s*:', text) for key in OWN)


def read(foreign: Foreign) -> Imported:
    """The plan of a config, for any model. Raises PlanError for a text that is no JSON."""
    source = Source(foreign.given, foreign.text)
    values = _values(source)
    refused = dict[str, str]()
    widths, notes = _widths(values, refused)
    lines = plan_of(widths, Net(), (*notes, "It names no model: give --model."))
    lists = dict[str, list[Item]]({"said": [], "silent": [], "refused": []})
    at = _lines(source.text)
    for key, value in values.items():
        what, becomes = _becomes(key, value, lines, refused)
        lists[what].append(Item(f"{key}: {json.dumps(value)}", becomes, at.get(key, 0)))
    said, silent, left = (tuple(lists[name]) for name in lists)
    return Imported("a config of DeepSpeed", lines.text, said, silent, left)


def _values(source: Source) -> dict[str, Any]:
    """The values by their keys, with dots between those of tables. Raises PlanError."""
    try:
        found = json.loads(source.text)
    except json.JSONDecodeError as error:
        start = sum(len(line) + 1 for line in source.text.split("\n")[: error.lineno - 1])
        line = source.line(error.lineno)
        raise PlanError(NotJson(Span(source, start, start + len(line)), error.msg.lower())) from None
    if not isinstance(found, dict):
        raise PlanError(NotJson(Span(source, 0, len(source.line(1))), "it is no object"))
    return dict(_flat(found))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]')


def _lines(text: str) -> dict[str, int]:
    """The line of each key."""
    found, path, last = dict[str, int](), list[str](), ""
    for token in TOKEN.finditer(text):
        if token[2] is not None:
            last = token[1]
            found.setdefault(".".join(filter(None, [*path, last])), text.count("\n", 0, token.start()) + 1)
        elif token[0] in "{[":
            path.append(last)
            last = ""
        elif token[0] in "}]" and path:
            path.pop()
    return found


# -- what it asks for --------------------------------------------------------------------------------------------------


def _widths(values: Mapping[str, Any], refused: dict[str, str]) -> tuple[Widths, list[str]]:
    """The widths, and comments; adds the keys that they do not follow, with the reasons."""

    def number(key: str, default: int) -> int:
        value = values.get(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and value == int(value):
            return int(value)
        if value not in (AUTO, None):
            refused[key] = "this is no number"
        return default

    stage = number("zero_optimization.stage", 0)
    if stage not in STATES:
        refused["zero_optimization.stage"] = "the stages are 0 to 3"
    state = STATES.get(stage)
    tensor, context = number("tensor_parallel.autotp_size", 1) or 1, number("sequence_parallel_size", 1) or 1
    passes = number("gradient_accumulation_steps", 1)
    whole, one = number("train_batch_size", 0), number("train_micro_batch_size_per_gpu", 0)
    notes = list[str]()
    data = 2
    if whole and one:
        data = whole // (one * passes)
        if data * one * passes != whole or not data:
            refused["train_batch_size"] = f"{one} samples in {passes} passes do not divide it"
            data = 2
    else:
        notes.append(f"The number of replicas is not said: {data} here.")
    if whole or one:
        notes.append(f"A batch is of {whole or one * passes * data} samples: batch={whole or one * passes * data}.")
    shards = max(0, number("zero_optimization.mics_shard_size", 0))
    if shards and data % shards:
        if whole and one:
            refused["zero_optimization.mics_shard_size"] = f"{shards} is no part of {data} replicas"
            shards = 0
        else:
            data = 2 * shards
    host = tuple(f"model.{kept}" for kept in dict.fromkeys(_to_host(values, state, refused)))
    widths = Widths(
        data=data,
        shards=shards,
        tensor=tensor,
        context=context,
        attention=Meeting.HEADS,
        micro=passes,
        state=state if data * context > 1 else None,
        to_host=host,
    )
    return widths, notes


def _to_host(values: Mapping[str, Any], state: Keeps | None, refused: dict[str, str]) -> Iterator[Keeps]:
    """Yields the state that is on the host, each of which has to lie in parts."""
    for key, kept in (("offload_param.device", Keeps.WEIGHTS), ("offload_optimizer.device", Keeps.OPTIMIZER)):
        name = f"zero_optimization.{key}"
        device = values.get(name)
        if device in (*OFF, AUTO):
            continue
        if device != "cpu":
            refused[name] = "state is in the memory of devices or of the host, on no disks"
        elif state is None or (kept is Keeps.WEIGHTS and state is not Keeps.WEIGHTS):
            refused[name] = "ignored there, too: the stage is too low"
        else:
            yield kept
            return  # with the weights goes the rest
    if values.get("zero_optimization.cpu_offload") is True and state is not None:
        yield Keeps.OPTIMIZER


def _becomes(key: str, value: Any, lines: PlanLines, refused: Mapping[str, str]) -> tuple[str, str]:
    """The list that a key belongs to, and what it becomes."""
    if key in refused:
        return "refused", refused[key]
    if value == AUTO:
        return "silent", "the trainer of transformers fills it in"
    if key in SAYS:
        text = lines.saying(*SAYS[key])
        if value in OFF or (value == 1 and "batch" not in key and "stage" not in key):
            return "silent", "off, or of one"
        return ("said", text) if text else ("refused", "ignored there, too: what it is about is not asked for")
    section, _, last = key.partition(".")
    for name, why in LACKING.items():
        if key == name or section == name:
            is_one = value == 1 and value is not True
            is_detail = section == name and last not in ("", "enabled")
            return ("silent", "off") if is_one or is_detail or value in OFF else ("refused", why)
    for why, names in SILENT.items():
        if section in names.split():
            return "silent", why
    known = [*SAYS, *LACKING, *(name for names in SILENT.values() for name in names.split())]
    near = suggest(key, known)
    return "refused", "DeepSpeed has no such key" + (f": {near}" if near else "")
