"""What a torchtitan configuration sets, whichever form it has: a TOML file, flags behind one, or a Python config."""

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssdsl.importers.errors import NoConfigFile, NotToml
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Item
from ssdsl.importers.titan.configs import config_settings
from ssdsl.importers.titan.setting import TitanSetting
from ssdsl.record import Record
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.source import Source, Span


class Configuration(Record):
    """The settings of a configuration in their order, of which a later one holds.

    `devices` is the size of the world that a command starts, None where none is said. `silent` and `refused` is what
    stands beside the settings. `folder` is where its files are looked for.
    """

    kind: str
    settings: tuple[TitanSetting, ...]
    devices: int | None = None
    silent: tuple[Item, ...] = ()
    refused: tuple[Item, ...] = ()
    folder: Path = Path()


def given_by(foreign: Foreign) -> Configuration:
    """What a source sets. Raises PlanError for a file that cannot be read."""
    folder = foreign.path.parent if foreign.path is not None else Path()
    file, _, function = foreign.given.partition(":")
    if file.endswith(".py") and " " not in file:
        settings, refused = config_settings(Path(file), function)
        return Configuration("a Python config of torchtitan", settings, refused=refused, folder=folder)
    if foreign.path is not None and foreign.path.suffix == ".toml":
        return Configuration("torchtitan's TOML", toml_settings(Source(foreign.given, foreign.text)), folder=folder)
    return _command(foreign, folder)


# -- TOML --------------------------------------------------------------------------------------------------------------

HEADING = re.compile(r"^\s*\[\[?\s*([\w.\-\"]+)\s*\]")
KEY = re.compile(r"^\s*([\w.\-\"]+)\s*=")


def toml_settings(source: Source) -> tuple[TitanSetting, ...]:
    """The keys of a TOML file, each with its section. Raises PlanError for a text that is none."""
    try:
        values = dict(_flat(tomllib.loads(source.text)))
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"line (\d+)", str(error))
        lines = source.text.split("\n")
        number = min(int(where[1]), len(lines)) if where else len(lines)
        start = sum(len(line) + 1 for line in lines[: number - 1])
        span = Span(source, start, start + len(lines[number - 1]))
        raise PlanError(NotToml(span, re.sub(r" \(at .*", "", str(error)))) from None
    lines_of = _lines(source.text, values)
    return tuple(TitanSetting(key, value, f"{key} = {_literal(value)}", lines_of[key]) for key, value in values.items())


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict) and (value or not prefix):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _lines(text: str, values: Mapping[str, Any]) -> dict[str, int]:
    """The line of each key; that of the key with a table for those within a table of one line."""
    found = dict[str, int]()
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        if heading := HEADING.match(line):
            section = heading[1].replace('"', "") + "."
            if section[:-1] in values:  # a table of a list
                found.setdefault(section[:-1], number)
        elif key := KEY.match(line):
            path = section + key[1].replace('"', "")
            for name in values:
                if name == path or name.startswith(f"{path}."):
                    found.setdefault(name, number)
    return {name: found.get(name, 0) for name in values}


def _literal(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case list():
            return f"[{', '.join(map(_literal, value))}]"
        case _:
            return str(value)


# -- commands ----------------------------------------------------------------------------------------------------------

SECTION = r"--(?:job|model|training|parallelism|experimental|activation_checkpoint|optimizer|checkpoint|compile)\.[a-z]"
OURS = re.compile(rf"{SECTION}|\b-m torchtitan|(?:^|\s|/)run_(?:llama_)?train\.sh\b|\btorchtitan/train\.py\b")
START = re.compile(r"\bCONFIG_FILE=|\bMODULE=\w+\s+CONFIG=")
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
VARIABLE = re.compile(r"\$\{(\w+)(?::?-((?:[^{}\"]|\"[^\"]*\")*))?\}|\$(\w+)")
PER_NODE, NODES = ("nproc_per_node", "nproc"), ("nnodes",)
KEYS_ABOVE = "names the configuration, whose keys are listed here"
CONFIGS = {"job.config_file": "config_file", "config_file": "config_file", "module": "module", "config": "config"}
STARTS = "where and how processes start: `torchrun`, or `ssdsl run --nnodes`"


class CommandWord(Record):
    """A word of a command, and its line."""

    text: str
    line: int


def is_command(text: str) -> bool:
    """Whether a command, or one of a script, starts torchtitan."""
    return bool(OURS.search(text) or START.search(text))


def _command(foreign: Foreign, folder: Path) -> Configuration:
    """What a command sets, or the last one of a script that starts torchtitan."""
    commands, variables = _commands(foreign.text)
    ours = [words for words in commands if is_command(_joined(words))]
    if not ours:
        ours = commands[-1:]
    others = [Item(_joined(words), "another command of the script", words[0].line) for words in ours[:-1]]
    words = ours[-1] if ours else []
    environment = dict(variables)
    while words and ASSIGNMENT.match(words[0].text.removeprefix("export ")):
        name, _, value = words[0].text.partition("=")
        environment[name] = (value, words[0].line)
        words = words[1:]
    return _of_command(words, environment, others, folder)


def _commands(text: str) -> tuple[list[list[CommandWord]], dict[str, tuple[str, int]]]:
    """The commands of a script, word by word with variables replaced, and the variables that it sets for all."""
    variables = dict[str, tuple[str, int]]()
    commands = []
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        first, line = number + 1, lines[number]
        while line.rstrip().endswith("\\") and number + 1 < len(lines):
            number += 1
            line = line.rstrip()[:-1] + " " + lines[number]
        number += 1
        own = {name: value for name, (value, _) in variables.items()}
        expanded = VARIABLE.sub(lambda m, own=own: own.get(m[1] or m[3], m[2] or ""), line.replace('"$@"', ""))  # type: ignore[misc]
        try:
            words = shlex.split(expanded, comments=True)
        except ValueError:  # a quote that other lines close
            continue
        words = [word for word in words if word not in ("export", "exec", "then", "fi", "else", "set", "-ex")]
        if words and all(ASSIGNMENT.match(word) for word in words):
            variables.update({name: (value, first) for name, _, value in (word.partition("=") for word in words)})
        elif words:
            commands.append([CommandWord(word, first) for word in words])
    return commands, variables


def _of_command(
    words: Sequence[CommandWord], environment: Mapping[str, tuple[str, int]], others: Sequence[Item], folder: Path
) -> Configuration:
    silent, refused = [*others], list[Item]()
    numbers = dict[str, int]()
    named = dict[str, CommandWord]()
    for variable, (value, line) in environment.items():
        written = f"{variable}={value}"
        match variable:
            case "NGPU" | "NNODES" if value.isdigit():
                numbers["nproc" if variable == "NGPU" else "nnodes"] = int(value)
                silent.append(Item(written, STARTS, line))
            case "CONFIG_FILE" | "MODULE" | "CONFIG":
                named[variable.lower()] = CommandWord(value, line)
                silent.append(Item(written, KEYS_ABOVE, line))
            case _:
                silent.append(Item(written, "a variable of the shell", line))
    flags = list[TitanSetting]()
    for flag, values in _options(words):
        key, equal, value = flag.text.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        values = [*([CommandWord(value, flag.line)] if equal else []), *values]
        first = values[0] if values else None
        written = " ".join([flag.text, *(word.text for word in values[1 if equal else 0 :])])
        if key in CONFIGS and first:
            named[CONFIGS[key]] = first
            silent.append(Item(written, KEYS_ABOVE, flag.line))
        elif not flag.text.startswith("--") or "." not in key:
            if key in (*PER_NODE, *NODES) and first and first.text.isdigit():
                numbers["nproc" if key in PER_NODE else "nnodes"] = int(first.text)
            silent.append(Item(written, STARTS, flag.line))
        else:
            flags.append(_flag(key, values, written, flag.line))
    devices = numbers["nproc"] * numbers.get("nnodes", 1) if "nproc" in numbers else None
    settings, found = _config(named, folder)
    kind = "a command of torchtitan's"
    return Configuration(kind, (*settings, *flags), devices, tuple(silent), (*refused, *found), folder)


def _options(words: Sequence[CommandWord]) -> Iterator[tuple[CommandWord, list[CommandWord]]]:
    """The flags of a command, each with the words up to the next one; words in front of flags by themselves."""
    k = 0
    while k < len(words):
        word = words[k]
        values = list[CommandWord]()
        k += 1
        if word.text.startswith("-"):
            takes = "." in word.text.partition("=")[0] or word.text.lstrip("-").replace("-", "_").startswith(TAKES)
            while takes and k < len(words) and not words[k].text.startswith("--"):
                if values and "." not in word.text.partition("=")[0]:
                    break  # of a launcher each takes one
                values.append(words[k])
                k += 1
        yield word, values


TAKES = ("module", "config", "nproc", "nnodes", "rdzv", "role", "tee", "local_ranks", "node_rank", "max_restarts", "m")


def _flag(key: str, values: Sequence[CommandWord], written: str, line: int) -> TitanSetting:
    head, _, last = key.rpartition(".")
    if not values and last.startswith("no_"):
        return TitanSetting(f"{head}.{last[3:]}", False, written, line)
    if not values:
        return TitanSetting(key, True, written, line)
    texts = [word.text for word in values]
    return TitanSetting(key, _value(texts[0]) if len(texts) == 1 else [_value(text) for text in texts], written, line)


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _config(named: Mapping[str, CommandWord], folder: Path) -> tuple[tuple[TitanSetting, ...], tuple[Item, ...]]:
    """What the configuration sets that a command names: a TOML file, or a function of a module."""
    config, module, name = (named.get(word) for word in ("config_file", "module", "config"))
    if config is not None:
        path = found_file(config.text, folder)
        if path is None:
            raise PlanError(NoConfigFile(None, config.text))
        return toml_settings(Source(str(path), path.read_text(encoding="utf-8"))), ()
    if module is None or name is None:
        return (), ()
    short = module.text.replace(".", "/")
    tried = [f"{short}/config_registry.py", f"{short}.py"]
    tried += [f"torchtitan/{kind}/{short}/config_registry.py" for kind in ("models", "experiments")]
    for file in tried:
        if path := found_file(file, folder):
            return config_settings(path, name.text)
    raise PlanError(NoConfigFile(None, tried[-2]))


def found_file(name: str, folder: Path) -> Path | None:
    """A file that a configuration names: beside it, below one of the folders above it, or from where the user is."""
    for base in (folder, *folder.resolve().parents, Path()):
        if (path := base / name).is_file():
            return path
    return None


def _joined(words: Sequence[CommandWord]) -> str:
    return " ".join(word.text for word in words)
