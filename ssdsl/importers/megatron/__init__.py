"""Command lines of Megatron-LM, Megatron-DeepSpeed and Megatron-Bridge, and the scripts and configs that they stand in.

A script is followed, never run. Its flags, or those of a config, become settings (`arguments.py`), these a model
(`model.py`) and widths (`parallel.py`), and each setting is said, silent or refused.
"""

import re
from collections.abc import Iterator, Mapping

from ssdsl.importers.errors import NoTraining
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported, Item
from ssdsl.importers.megatron.arguments import (
    Arguments,
    FlagOutcome,
    FlagSetting,
    check_values,
    flag_of,
    is_flag,
    refused,
    settings_of,
    silent,
)
from ssdsl.importers.megatron.configs import RECIPE, Fixed, bridge_settings, deepspeed_config, is_yaml, yaml_settings
from ssdsl.importers.megatron.flags import FLAGS, ItemList
from ssdsl.importers.megatron.launch import OVERRIDE, TrainingLaunch, launch_of, others, score
from ssdsl.importers.megatron.model import model_of
from ssdsl.importers.megatron.parallel import MESH, parallel_of
from ssdsl.importers.megatron.request import ParallelRequest, sizes_of
from ssdsl.importers.megatron.shell.follow import FollowedScript, ShellWord, run
from ssdsl.importers.widths import PlanLines, plan_of
from ssdsl.lang.suggest import suggest
from ssdsl.record import Record, replace
from ssdsl.text.diagnostic import PlanError

SIGNS = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*|\b[a-z_]+(?:\.\w+)+(?==)")
SCRIPTS = (".sh", ".slurm", ".sbatch", ".bash", ".sub")
WIDTHS = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")
UNQUOTED = re.compile(r"(--pipeline-model-parallel-layout|--moe-layer-freq|--hybrid-layer-pattern)(=|\s+)([^\s'\"$]+)")
ENOUGH = 2  # flags that only Megatron has


class ReadSource(Record):
    """What a source says: the settings that rules read, those whose place is known already, the script that trains, and
    the number of devices, 0 where it is not known."""

    kind: str
    settings: tuple[FlagSetting, ...]
    fixed: tuple[Fixed, ...]
    script: str
    world: int


def recognises(source: Foreign) -> bool:
    """Whether flags that Megatron alone has stand in a source, and it is no program."""
    if source.path is not None and (source.path.is_dir() or source.path.suffix in (".py", ".toml", ".csv", ".json")):
        return False
    if is_yaml(source):
        return True
    found = {match.group() for match in SIGNS.finditer(source.text[: 1 << 20])}
    own = [word for word in found if (flag := FLAGS.get(flag_of(word))) is not None and flag.is_ruled and is_flag(word)]
    overrides = [word for word in found if not is_flag(word) and word.partition(".")[0] in ("model", "train", "ddp")]
    known = [
        word for word in overrides if (flag := FLAGS.get(word.rpartition(".")[2].replace("_", "-"))) and flag.is_ruled
    ]
    if len(own) >= ENOUGH or known or (own and source.text.strip().startswith("--")):
        return True
    is_script = source.path is not None and (source.path.suffix in SCRIPTS or source.text.startswith("#!/bin"))
    return is_script and any(score(words) > ENOUGH for words in run(source.text, source.path).commands)


def read(source: Foreign) -> Imported:
    """The plan of a command line, a script or a config. Raises PlanError."""
    given = _given(source)
    args = Arguments(given.settings, source)
    check_values(args)
    sizes = sizes_of(args, given.world)
    model = model_of(args, given.script, sizes.tensor, sizes.stages, sizes.batch)
    parallel = parallel_of(ParallelRequest(args, sizes, given.world, model.layers, model.experts, model.kind))
    behind = model.kind.behind if model.kind is not None and parallel.ends_behind else None
    lines = plan_of(parallel.widths, replace(model.net, behind=behind), (*model.comments, *parallel.comments))
    verdicts = {**model.verdicts, **parallel.verdicts}
    items = [*_items(args, given, verdicts, lines)]
    said, quiet, not_done = (tuple(item for place, item in items if place is own) for own in ItemList)
    return Imported(given.kind, lines.text, said, quiet, not_done, model.net.model)


# -- what is given -----------------------------------------------------------------------------------------------------


def _given(source: Foreign) -> ReadSource:
    if is_yaml(source):
        settings, fixed = yaml_settings(source)
        args = Arguments(tuple(settings), source)
        inner, more = _deepspeed(args, None, source)
        return ReadSource(
            "a config of Megatron-LM", (*inner, *settings), (*fixed, *more), "", args.number("world-size")
        )
    script = run(source.text if source.path is not None else _quoted(source.text), source.path)
    words = max(script.commands, key=score, default=())
    if score(words) < 1:
        words = _of_variables(script)
    if not words:
        name = source.path.name if source.path is not None else source.given[:60]
        raise PlanError(NoTraining(None, name, _reason(script)))
    launch = launch_of(words, script)
    is_bridge = any(OVERRIDE.match(word.text) for word in launch.words)
    if is_bridge:
        settings, fixed = bridge_settings(launch.words)
    else:
        settings, rest = settings_of(launch.words)
        fixed = [_rest(word) for word in rest]
    fixed = [*launch.before, *fixed, *others(script, words), *_assumed(script)]
    counted = [replace(setting, flag="DEVICES") for setting in launch.counted]
    args = Arguments(tuple(settings), source)
    inner, more = _deepspeed(args, script, source)
    world = launch.world or args.number("world-size")
    if is_bridge and any(verdict.reason == RECIPE for _, verdict in fixed) and not all(map(args.has, WIDTHS)):
        world = 0  # the recipe may have widths that divide it
    kind = _kind(launch, args, is_bridge, source)
    return ReadSource(kind, (*counted, *inner, *settings), (*fixed, *more), launch.script, world)


def _quoted(text: str) -> str:
    """A command line in which layouts have quotes, which the user's shell has taken away."""
    return UNQUOTED.sub(lambda found: f"{found[1]}{found[2]}'{found[3]}'", text)


def _kind(launch: TrainingLaunch, args: Arguments, is_bridge: bool, source: Foreign) -> str:
    name = "Megatron-Bridge" if is_bridge else "Megatron-DeepSpeed" if args.has("deepspeed") else "Megatron-LM"
    return f"a {'script' if source.path is not None else 'command line'} of {name}"


def _of_variables(script: FollowedScript) -> tuple[ShellWord, ...]:
    """The flags in variables of a script that starts nothing: those of each that no other one has."""
    found: list[tuple[ShellWord, ...]] = []
    for words in sorted(script.variables.values(), key=len, reverse=True):
        texts = [word.text for word in words]
        if score(words) and not any(_has(own, texts) for own in found):
            found.append(words)
    return tuple(word for words in sorted(found, key=lambda own: own[0].line) for word in words)


def _has(words: tuple[ShellWord, ...], texts: list[str]) -> bool:
    own = [word.text for word in words]
    return any(own[n : n + len(texts)] == texts for n in range(len(own) - len(texts) + 1))


def _reason(script: FollowedScript) -> str:
    if script.assumed:
        return f"line {script.assumed[0].line}, `{script.assumed[0].written}`: {script.assumed[0].because}"
    return "no command of it has a flag of Megatron"


def _rest(word: ShellWord) -> Fixed:
    """What becomes of a word that is part of no flag."""
    setting = FlagSetting("", (), word.text, word.line, word.file)
    if word.text.startswith("$"):
        return setting, refused("flags that the script does not have: what they are is not known")
    return setting, refused("the value of no flag: Megatron stops here")


def _assumed(script: FollowedScript) -> Iterator[Fixed]:
    """Yields what the script leaves open."""
    for own in script.assumed:
        yield FlagSetting("", (), own.written, own.line, own.file), refused(own.because)


def _deepspeed(
    args: Arguments, script: FollowedScript | None, source: Foreign
) -> tuple[list[FlagSetting], list[Fixed]]:
    """The settings of the config that `--deepspeed_config` names."""
    name = args.text("deepspeed_config")
    if not name:
        return [], []
    text = script.files.get(name) if script is not None else None
    if text is None and source.path is not None:
        folder, last = source.path.parent, name.rpartition("/")[2]
        path = next((own for own in (folder / name, folder / last) if own.is_file()), None)
        text = path.read_text("utf-8", "replace") if path is not None else None
    return deepspeed_config(text, name.rpartition("/")[2]) if text is not None else ([], [])


# -- the lists ---------------------------------------------------------------------------------------------------------


def _items(
    args: Arguments, given: ReadSource, verdicts: Mapping[str, FlagOutcome], lines: PlanLines
) -> Iterator[tuple[ItemList, Item]]:
    """Yields what became of each setting."""
    last = {setting.flag: setting for setting in args.settings}
    has_lines = "\n" in args.source.text.strip()
    for setting in args.settings:
        own = last[setting.flag]
        if own is not setting and setting.flag and setting.flag != "DEVICES" and own != setting:
            where = f" on line {own.line}" if has_lines and own.line != setting.line else ""
            same = silent(f"`{own.written}` says it, too")
            verdict = same if own.values == setting.values else refused(f"overridden by `{own.written}`{where}")
        else:
            verdict = _verdict(setting, args, given, verdicts)
        reason = verdict.reason.format(name=setting.flag) if "{name}" in verdict.reason else verdict.reason
        place, text = verdict.place, reason or _saying(lines, verdict.says)
        if not text:
            place, text = ItemList.SILENT, "nothing here depends on it"
        yield place, Item(setting.written, text, _line(setting, has_lines))
    for setting, verdict in given.fixed:
        yield verdict.place, Item(setting.written, verdict.reason, _line(setting, has_lines))


def _saying(lines: PlanLines, fields: tuple[str, ...]) -> str:
    """The lines that say fields; of `MESH` the mesh alone."""
    if MESH in fields:
        return next((line.text for line in lines.lines if line.text.startswith("mesh ")), "")
    return lines.saying(*fields)


def _line(setting: FlagSetting, has_lines: bool) -> int:
    return 0 if setting.file or not has_lines else setting.line


def _verdict(
    setting: FlagSetting, args: Arguments, given: ReadSource, verdicts: Mapping[str, FlagOutcome]
) -> FlagOutcome:
    flag = FLAGS.get(setting.flag)
    if flag is None and setting.flag in verdicts:
        return verdicts[setting.flag]
    if flag is None:
        return _unknown(setting)
    if flag.name == "deepspeed_config":
        return _config(setting, given)
    if flag.is_ruled and setting.is_open:
        return refused(f"`{' '.join(setting.values)}` is not in the source: as if this flag were left out")
    if setting.flag in verdicts:
        return verdicts[setting.flag]
    return FlagOutcome(flag.place, flag.reason)


def _config(setting: FlagSetting, given: ReadSource) -> FlagOutcome:
    name = setting.values[0].rpartition("/")[2] if setting.values else ""
    has_read = any(own.file == name for own in given.settings) or any(own.file == name for own, _ in given.fixed)
    if has_read:
        return silent("its keys stand in these lists")
    return refused("its text is not in the source: no such file beside it")


def _unknown(setting: FlagSetting) -> FlagOutcome:
    """A flag that neither we nor Megatron's parsers know."""
    name = setting.written.partition(" ")[0].partition("=")[0]
    if not is_flag(name):
        return silent("no flag")
    near = suggest(name.lstrip("-"), [*FLAGS])
    hint = f": {near}" if near else ""
    return refused(f"no flag of Megatron that is known{hint}")
