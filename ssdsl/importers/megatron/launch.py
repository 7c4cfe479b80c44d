"""What starts a training: the command of a script that trains, its launcher, and the number of devices."""

import re
from collections.abc import Iterator

from ssdsl.importers.megatron.arguments import FlagOutcome, FlagSetting, flag_of, is_flag, refused, silent
from ssdsl.importers.megatron.flags import FLAGS
from ssdsl.importers.megatron.shell.follow import FollowedScript, ShellWord
from ssdsl.record import Record

OVERRIDE = re.compile(r"\+{0,2}~?[a-z_]\w*(\.\w+)+=")
ROUTINE = "how processes are started: `torchrun`, `ssdsl run`"
# Flags of launchers that take no value.
SWITCHES = set(
    "standalone use_env no_python module run_path verbose v l exclusive force_multi no_local_rank no_ssh_check no_ssh "
    "overcommit enable_elastic_training bind_cores_to_rank no-container-mount-home no_container_mount_home unbuffered "
    "u label no-sync no_sync m no-kill container-mount-home container-writable export-all wait save_pid".split()
)
COUNTS = {
    "nproc_per_node": "each",
    "num_gpus": "each",
    "ntasks_per_node": "each",
    "gpus_per_node": "gpus",
    "gres": "gpus",
    "nnodes": "nodes",
    "num_nodes": "nodes",
    "nodes": "nodes",
    "N": "nodes",
    "ntasks": "all",
    "n": "all",
    "np": "all",
}
WORLD = ("WORLD_SIZE", "NUM_GPUS", "num_gpus", "GPU_NUM", "NGPUS", "NUM_GPU", "N_GPUS", "n_gpus", "DEVICES")
EACH = ("GPUS_PER_NODE", "NPROC_PER_NODE", "num_gpus_pernode", "NUM_GPUS_PER_NODE", "N_GPUS_PER_NODE")
NODES = ("NNODES", "NUM_NODES", "NODES", "num_node", "num_nodes", "N_NODES")


class TrainingLaunch(Record):
    """A command that trains: its words behind the script, the script, what becomes of the words before it, and the
    number of devices, 0 where it is not known."""

    words: tuple[ShellWord, ...]
    script: str
    before: tuple[tuple[FlagSetting, FlagOutcome], ...]
    world: int
    counted: tuple[FlagSetting, ...]  # what says the number


def score(words: tuple[ShellWord, ...]) -> int:
    """How much a command looks like one that trains: its flags that describe a model or a plan."""
    ruled = sum(
        is_flag(word.text) and (own := FLAGS.get(flag_of(word.text))) is not None and own.is_ruled for word in words
    )
    return ruled + sum(bool(OVERRIDE.match(word.text)) for word in words)


def launch_of(words: tuple[ShellWord, ...], script: FollowedScript | None) -> TrainingLaunch:
    """Cut a command into its launcher, its script and the rest."""
    at = next((n for n, word in enumerate(words) if _is_script(word.text)), None)
    if at is None:
        first = next((n for n, word in enumerate(words) if _is_own(word.text)), 0)
        before, name, rest = words[:first], "", words[first:]
    else:
        before, name, rest = words[:at], words[at].text.rpartition("/")[2], words[at + 1 :]
    flags = [*_launcher(before)]
    if script is not None:
        flags += _launcher(script.options, "#SBATCH ")
    numbers = {
        COUNTS[key]: value for setting in reversed(flags) if (value := _count(setting)) and (key := _key(setting))
    }
    counted = [setting for setting in flags if _count(setting) and _key(setting) in COUNTS]
    if "each" not in numbers and "gpus" in numbers and "all" not in numbers:
        numbers["each"] = numbers["gpus"]
    world = numbers.get("each", 0) * numbers.get("nodes", 1) or numbers.get("all", 0)
    if not world and script is not None:
        world, counted = _of_variables(script, numbers.get("nodes", 0), counted)
    fixed = [(setting, silent(ROUTINE)) for setting in flags if setting not in counted]
    fixed += [(setting, silent(ROUTINE)) for setting in counted if not world]
    return TrainingLaunch(rest, name, tuple(fixed), world, tuple(counted) if world else ())


def _is_script(text: str) -> bool:
    return text.endswith(".py") and not is_flag(text) and "=" not in text


def _is_own(text: str) -> bool:
    """Whether a word is a flag of Megatron, or an override of Megatron-Bridge."""
    return (is_flag(text) and flag_of(text) in FLAGS) or bool(OVERRIDE.match(text))


def _launcher(words: tuple[ShellWord, ...], prefix: str = "") -> Iterator[FlagSetting]:
    """Yields the flags of launchers."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not is_flag(word.text):
            continue
        name, sign, value = word.text.partition("=")
        values = [value] if sign else []
        is_switch = name.lstrip("-").replace("-", "_") in {own.replace("-", "_") for own in SWITCHES}
        if not sign and not is_switch and at < len(words) and not is_flag(words[at].text):
            values.append(words[at].text)
            at += 1
        written = word.text if sign else " ".join([name, *values])
        yield FlagSetting(name.lstrip("-"), tuple(values), f"{prefix}{written}", word.line, word.file)


def _key(setting: FlagSetting) -> str:
    return setting.flag.replace("-", "_")


def _count(setting: FlagSetting) -> int:
    """The number that a flag of a launcher gives, 0 for none that is known; of `1:4` the first."""
    if _key(setting) not in COUNTS or not setting.values:
        return 0
    match = re.fullmatch(r"(?:gpu:(?:\w+:)?)?(\d+)(?:[:-]\d+)?", setting.values[0])
    return int(match[1]) if match else 0


def _of_variables(script: FollowedScript, nodes: int, counted: list[FlagSetting]) -> tuple[int, list[FlagSetting]]:
    """The number of devices by variables whose names say it."""

    def first(names: tuple[str, ...]) -> tuple[int, list[FlagSetting]]:
        for name in names:
            value = script.variables.get(name, ())
            if len(value) == 1 and value[0].text.isdigit() and int(value[0].text):
                own = value[0]
                return int(own.text), [FlagSetting(name, (own.text,), f"{name}={own.text}", own.line, own.file)]
        return 0, []

    world, settings = first(WORLD)
    if world:
        return world, settings
    each, of_each = first(EACH)
    number, of_nodes = (nodes, counted) if nodes else first(NODES)
    return (each * number, of_each + of_nodes) if each and number else (0, counted)


def others(script: FollowedScript, chosen: tuple[ShellWord, ...]) -> Iterator[tuple[FlagSetting, FlagOutcome]]:
    """Yields the other commands that train."""
    for words in script.commands:
        if words is not chosen and score(words) > 2 and words != chosen:
            shown = " ".join(word.text for word in words[:4])
            setting = FlagSetting("", (), f"{shown} ...", words[0].line, words[0].file)
            yield setting, refused("another command: give its flags for a plan of its own")
