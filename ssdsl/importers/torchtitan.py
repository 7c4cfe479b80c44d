"""torchtitan's configurations: TOML of the versions that had it, commands with flags, Python configs."""

import re
from collections.abc import Mapping
from pathlib import Path

from ssdsl.importers.errors import NothingToImport
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported, Item
from ssdsl.importers.titan.asked import ConfigReader, TitanWidths
from ssdsl.importers.titan.keys import ALIASES, EIGHT_BITS, LACKING, OF_MODEL, OFF, SAYS, known_keys, reason
from ssdsl.importers.titan.setting import TitanSetting, UnreadValue
from ssdsl.importers.titan.settings import Configuration, found_file, given_by, is_command
from ssdsl.importers.widths import PlanLines, plan_of
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import PlanError

SECTIONS = (
    "job model training parallelism experimental activation_checkpoint compile optimizer lr_scheduler metrics "
    "profiling checkpoint float8 quantize comm debug validation"
).split()
ONES = (*OFF, 1, -1, "1", "default", "1F1B", "headtail")  # values that every run has


MODULES = ("job.custom_config_module", "experimental.custom_args_module")


def recognises(foreign: Foreign) -> bool:
    """Whether a source is a configuration of torchtitan."""
    given, text = foreign.given, foreign.text
    if given.partition(":")[0].endswith(".py"):
        file = Path(given.partition(":")[0])
        text = text if foreign.path is not None or not file.is_file() else file.read_text(encoding="utf-8")
        return "torchtitan" in text and ("Trainer.Config" in text or "Config(" in text)
    if foreign.path is not None and foreign.path.suffix == ".toml":
        found = {word.partition(".")[0] for word in re.findall(r"(?m)^\s*\[\s*([\w.\"]+)\s*\]", text)}
        return len(found & {*SECTIONS}) > 1 and bool(found & {"training", "parallelism", "model", "experimental"})
    return " " in text.strip() and is_command(text) and "--tensor-model-parallel-size" not in text


def read(foreign: Foreign) -> Imported:
    """The plan of a configuration. Raises PlanError for one that cannot be read."""
    given = given_by(foreign)
    if not given.settings:
        why = "it names no configuration of torchtitan's, and has no flag of one"
        raise PlanError(NothingToImport(None, foreign.given[:60], why, "torchtitan"))
    settings = [(s, ALIASES.get(s.key, s.key)) for s in given.settings]
    last = {key: setting for setting, key in settings if not setting.replaced}
    old = any(
        s.key.startswith(("experimental.pipeline", "training.pipeline", "experimental.context")) for s, _ in settings
    )

    def table(source: str, stages: int, chunks: int, micro: int) -> tuple[str, str] | str:
        return _table(given, source, stages, chunks, micro)

    asked = ConfigReader({key: s.value for key, s in last.items()}, given.devices, old, table).read()
    lines = plan_of(asked.widths, asked.net, asked.notes)
    lists = dict[str, list[Item]]({"said": [], "silent": [*given.silent], "refused": [*given.refused]})
    for setting, key in settings:
        if setting.replaced or last[key] is not setting:
            what, becomes = "silent", "another value follows"
        else:
            what, becomes = _becomes(setting, key, asked, lines, last)
        lists[what].append(Item(setting.written, becomes, setting.line))
    return Imported(
        given.kind,
        lines.text,
        tuple(lists["said"]),
        tuple(lists["silent"]),
        tuple(lists["refused"]),
        asked.net.model,
        asked.files,
    )


def _becomes(
    setting: TitanSetting, key: str, asked: TitanWidths, lines: PlanLines, last: Mapping[str, TitanSetting]
) -> tuple[str, str]:
    """The list that a setting belongs to, and what it becomes."""
    value = setting.value
    if key in asked.refused:
        return "refused", asked.refused[key]
    if key in SAYS:
        text = lines.saying(*SAYS[key])
        if value in ONES and not (isinstance(value, int) and value == -1 and text):
            return "silent", "what every run has"
        if text:
            return "said", text
        return ("silent", "what every run has") if value in OFF else ("refused", _ignored(key))
    if key in OF_MODEL:
        if isinstance(value, UnreadValue):
            return "refused", f"`{value.expression}` is not plain"
        if asked.net.model is not None:
            return "said", f"--model {asked.net.model}"
        if value in ONES:
            return "silent", "what every run has"
        return "silent", "the model's: `--model NAME,seq=...,batch=...`"
    return _beside_the_plan(setting, key, last)


def _ignored(key: str) -> str:
    about = {"context": "the sequence is not cut", "expert": "experts are not divided", "fsdp": "no state is in parts"}
    about["selective_ac"] = "the mode is not selective"
    found = next((why for word, why in about.items() if word in key), "what it is about is not asked for")
    return f"ignored there, too: {found}"


def _beside_the_plan(setting: TitanSetting, key: str, last: Mapping[str, TitanSetting]) -> tuple[str, str]:
    """As `_becomes`, of what is no part of a plan."""
    value = setting.value
    if key.endswith(".converters"):
        return ("refused", "products in 8 bits, and adapters: nothing yet") if _asks(value) else ("silent", "none")
    if key == "model.norm_type" and isinstance(value, str):
        same = "rmsnorm" in value
        return ("silent", "the model's") if same else ("refused", "the model here has an RMS norm")
    if key == "model.attn_mask_type":
        return ("silent", "the model's") if value == "causal" else ("refused", LACKING["model.use_flex_attn"])
    if key.startswith("activation_checkpoint.per_op_sac"):
        plain = value in ([], ["moe.router.gate"], "moe.router.gate")
        return ("silent", "the router is computed again") if plain else ("refused", "say it by `recompute` of a path")
    if key == "parallelism.expert_parallel_comm_backend" and value not in (*OFF, "standard"):
        return "refused", "rows go to their experts by all_to_all"
    if key in MODULES and isinstance(value, str) and value.startswith("torchtitan."):
        return "silent", "keys that torchtitan has for a model of its own"
    if key in LACKING:
        return ("refused", LACKING[key]) if _asks(value) else ("silent", "off")
    if key.startswith(EIGHT_BITS):
        return (
            ("refused", LACKING["float8.enable_float8_linear"])
            if _eight_bits(last) and _asks(value)
            else (
                "silent",
                "of products in 8 bits, which are not asked for",
            )
        )
    if (why := reason(key)) is not None:
        return "silent", why
    if isinstance(value, UnreadValue) and key.endswith("**"):
        return "refused", f"`{value.expression}` is not plain"
    near = suggest(key, known_keys())
    return "refused", "torchtitan has no such key" + (f": {near}" if near else "")


def _asks(value: object) -> bool:
    return value not in OFF


def _eight_bits(last: Mapping[str, TitanSetting]) -> bool:
    named = last["model.converters"].value if "model.converters" in last else []
    text = str(named)
    on = ("float8.enable_float8_linear", "training.enable_fp8_linear", "training.enable_float8_linear")
    return any(word in text for word in ("float8", "mx", "quantize")) or any(
        key in last and _asks(last[key].value) for key in (*on, "training.fp8_linear")
    )


def _table(given: Configuration, source: str, stages: int, chunks: int, micro: int) -> tuple[str, str] | str:
    """A schedule of PyTorch's, or one that a CSV has, as a table beside the plan; or the reason why there is none."""
    from ssdsl.importers.tables.torch_schedules import table_of_file, table_of_schedule

    if source.endswith(".csv"):
        path = found_file(source, given.folder)
        if path is None:
            return f"there is no file `{source}`"
        return table_of_file(path, stages, micro)
    return table_of_schedule(source, stages, chunks, micro)
