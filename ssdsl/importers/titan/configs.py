"""torchtitan's Python configs, read without running them.

A config is a function that returns a `Trainer.Config`, mostly of literals: constructors with keywords, and lines such
as `config.training.steps = 20` that change what another such function has returned. These are followed here, through
the files that they import from. What is anything else, a condition or a loop, is not read, and listed with its line; so
no code of a stranger runs, and nobody has to be asked.
"""

import ast
import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ssdsl.importers.errors import NoConfigFile, NoSuchConfig
from ssdsl.importers.imported import Item
from ssdsl.importers.titan.setting import TitanSetting, UnreadValue
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import PlanError

NOT_READ = "no plain setting: the file is read, not run; say what it sets as flags behind the command"
DEPTH = 16
COPIES = re.compile(r"\{(\w+)\.name: getattr\((\w+), \1\.name\) for \1 in (?:dataclasses\.)?fields\(\2\)[^{}]*\}$")
OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


class _Call:
    """What a constructor has been called with, and later lines have changed."""

    def __init__(self, name: str, line: int) -> None:
        self.name, self.line = name, line
        self.args = list[Any]()
        self.fields = dict[str, tuple[Any, int]]()


class _Returned(Exception):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def config_settings(path: Path, function: str) -> tuple[tuple[TitanSetting, ...], tuple[Item, ...]]:
    """The settings of a config function, and what of it is not read. Raises PlanError if there is no such function."""
    if not path.is_file():
        raise PlanError(NoConfigFile(None, str(path)))
    module = _Module.of(path)
    if module is None:
        raise PlanError(NoSuchConfig(None, str(path), function, "it is not Python that can be parsed"))
    configs = [name for name, node in module.functions.items() if _is_config(node)]
    if not function and len(configs) == 1:
        function = configs[0]
    if function not in module.functions:
        known = ", ".join(configs[:12]) + (f" and {len(configs) - 12} more" if len(configs) > 12 else "")
        told = suggest(function, configs) or (f"it has {known}" if configs else "it has no function that returns one")
        raise PlanError(NoSuchConfig(None, str(path), function, told))
    reader = _Reader()
    value = reader.called(module, module.functions[function], {})
    settings = tuple(_settings(value, "", reader.family(module)))
    return (*reader.replaced, *settings), tuple(reader.unread)


def _is_config(node: ast.FunctionDef) -> bool:
    returns = ast.unparse(node.returns) if node.returns is not None else ""
    return len(node.args.args) == len(node.args.defaults) and (
        "Config" in returns or (not returns and not node.name.startswith("_"))
    )


class _Module:
    """A parsed file: its functions, its constants, and the names that it imports, each with the file and the name."""

    def __init__(self, path: Path, tree: ast.Module, text: str) -> None:
        self.path, self.text = path, text
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.constants = dict[str, ast.expr]()
        self.imports = dict[str, tuple[str, int, str]]()
        for node in tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (node.module or "", node.level, alias.name)

    @classmethod
    def of(cls, path: Path) -> "_Module | None":
        try:
            text = path.read_text(encoding="utf-8")
            return cls(path, ast.parse(text), text)
        except (OSError, SyntaxError, ValueError):
            return None

    def imported(self, name: str) -> "tuple[_Module, ast.FunctionDef] | None":
        """The function that an imported name is, if its file is found beside this one or on the path of Python."""
        if name not in self.imports:
            return None
        module, level, original = self.imports[name]
        below = module.replace(".", "/")
        if level:
            bases = [self.path.parents[level - 1]]
        else:
            bases = [*self.path.resolve().parents, Path(), *(Path(entry) for entry in sys.path if entry)]
        for base in bases:
            for file in (base / f"{below}.py", base / below / "__init__.py"):
                if file.is_file() and (found := _Module.of(file)) is not None:
                    function = found.functions.get(original)
                    return (found, function) if function is not None else found.imported(original)
        return None


class _Reader:
    """Follows functions of literals. `replaced` are settings that later lines replace, `unread` what is not plain."""

    def __init__(self) -> None:
        self.replaced = list[TitanSetting]()
        self.unread = list[Item]()
        self.depth = 0
        self.of_model: str | None = None

    def family(self, module: _Module) -> str:
        """The model whose registry a config asks: that of its folder, or the one that it imports from."""
        if self.of_model is not None:
            return self.of_model
        return module.path.resolve().parent.name

    def called(self, module: _Module, node: ast.FunctionDef, values: dict[str, Any]) -> Any:
        """What a function returns."""
        if self.depth >= DEPTH:
            return UnreadValue(f"{node.name}()")
        self.depth += 1
        try:
            self._run(module, node.body, values)
        except _Returned as returned:
            return returned.value
        finally:
            self.depth -= 1
        return None

    def _run(self, module: _Module, body: list[ast.stmt], values: dict[str, Any]) -> None:
        for statement in body:
            match statement:
                case ast.Return(value=value):
                    raise _Returned(self._value(module, value, values) if value is not None else None)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    values[name] = self._value(module, value, values)
                case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                    values[name] = self._value(module, value, values)
                case ast.Assign(targets=[ast.Attribute() as target], value=value):
                    self._set(module, target, self._value(module, value, values), values)
                case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Pass() | ast.ImportFrom() | ast.Import():
                    pass
                case ast.FunctionDef():  # says nothing until it is called
                    pass
                case ast.Expr(value=ast.Call() as call) if self._function(module, call) is not None:
                    self._value(module, call, values)
                case ast.If(test=test) if isinstance(known := self._value(module, test, values), bool):
                    self._run(module, statement.body if known else statement.orelse, values)
                case _:
                    self._leave(module, statement)

    def _leave(self, module: _Module, statement: ast.stmt) -> None:
        text = (ast.get_source_segment(module.text, statement) or "").split("\n")
        self.unread.append(Item(text[0] + (" ..." if len(text) > 1 else ""), NOT_READ, statement.lineno))

    def _set(self, module: _Module, target: ast.Attribute, value: Any, values: dict[str, Any]) -> None:
        path = ast.unparse(target).split(".")
        owner = values.get(path[0])
        for name in path[1:-1]:
            if not isinstance(owner, _Call):
                break
            held = owner.fields.setdefault(name, (_Call(name, target.lineno), target.lineno))[0]
            owner = held
        if not isinstance(owner, _Call):
            self.unread.append(Item(f"{ast.unparse(target)} = {_shown(value)}", NOT_READ, target.lineno))
            return
        if path[-1] in owner.fields:
            old, line = owner.fields[path[-1]]
            prefix = ".".join(path[1:])
            gone = _settings_of(prefix, old, line, self.family(module))
            self.replaced += [TitanSetting(s.key, s.value, s.written, s.line, replaced=True) for s in gone]
        owner.fields[path[-1]] = (value, target.lineno)

    def _function(self, module: _Module, call: ast.Call) -> "tuple[_Module, ast.FunctionDef] | None":
        if not isinstance(call.func, ast.Name):
            return None
        if call.func.id in module.functions:
            return module, module.functions[call.func.id]
        if call.func.id == "model_registry" or call.func.id.startswith("default_"):
            return None
        return module.imported(call.func.id)

    def _value(self, module: _Module, node: ast.expr, values: dict[str, Any]) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                if name in values:
                    return values[name]
                constant = module.constants.get(name)
                return UnreadValue(name) if constant is None else self._value(module, constant, {})
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self._value(module, item, values) for item in items]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self._value(module, operand, values)
                return -value if isinstance(value, int | float) else UnreadValue(ast.unparse(node))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
                ends = [self._value(module, end, values) for end in (left, right)]
                if all(isinstance(end, int | float) for end in ends):
                    return OPERATIONS[type(op)](*ends)
                return UnreadValue(ast.unparse(node))
            case ast.Attribute():
                return self._attribute(node, values)
            case ast.Call():
                return self._called(module, node, values)
            case _:
                return UnreadValue(ast.unparse(node))

    def _attribute(self, node: ast.Attribute, values: dict[str, Any]) -> Any:
        path = ast.unparse(node).split(".")
        found = values.get(path[0])
        for name in path[1:]:
            if not isinstance(found, _Call) or name not in found.fields:
                return UnreadValue(ast.unparse(node))
            found = found.fields[name][0]
        return found

    def _called(self, module: _Module, node: ast.Call, values: dict[str, Any]) -> Any:
        if known := self._function(module, node):
            where, function = known
            names = [argument.arg for argument in function.args.args]
            own = dict(zip(names, (self._value(module, argument, values) for argument in node.args), strict=False))
            own |= {word.arg: self._value(module, word.value, values) for word in node.keywords if word.arg is not None}
            defaults = function.args.defaults
            for name, default in zip(names[len(names) - len(defaults) :], defaults, strict=True):
                own.setdefault(name, self._value(where, default, {}))
            return self.called(where, function, own)
        call = _Call(ast.unparse(node.func), node.lineno)
        if call.name == "model_registry":
            self.of_model = self._registry(module)
        call.args = [self._value(module, argument, values) for argument in node.args]
        for word in node.keywords:
            if word.arg is None and (copied := COPIES.match(ast.unparse(word.value))):
                base = values.get(copied[2])
                call.fields |= base.fields if isinstance(base, _Call) else {}
                continue
            name = word.arg if word.arg is not None else "**"
            call.fields[name] = (self._value(module, word.value, values), word.value.lineno)
        return call

    def _registry(self, module: _Module) -> str:
        source, level, _ = module.imports.get("model_registry", ("", 1, ""))
        return module.path.resolve().parent.name if level else source.split(".")[-1]


# -- from calls to settings --------------------------------------------------------------------------------------------

POLICIES = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "memory_budget"}
RENAMED = {"validator": "validation", "profiler": "profiling", "model_spec": "model", "lr_scheduler": "lr_scheduler"}


def _settings(value: Any, prefix: str, family: str) -> Iterator[TitanSetting]:
    if isinstance(value, _Call):
        for name, (held, line) in value.fields.items():
            yield from _settings_of(f"{prefix}{name}", held, line, family)


def _settings_of(key: str, value: Any, line: int, family: str) -> Iterator[TitanSetting]:
    """The settings that an argument is: one for each number in the constructors that it calls."""
    head, _, rest = key.partition(".")
    key = f"{RENAMED.get(head, head)}{'.' if rest else ''}{rest}"
    if key == "activation_checkpoint" and value is None:
        key = "activation_checkpoint.mode"
    if not isinstance(value, _Call):
        yield TitanSetting(key, value, f"{head}{'.' if rest else ''}{rest}={_shown(value)}", line)
        return
    policy = POLICIES.get(value.name.removesuffix(".Config").rpartition(".")[2])
    if head == "model_spec":
        flavor = value.args[0] if value.args else value.fields.get("flavor", (None, 0))[0]
        yield TitanSetting("model.name", family, f"the model {family}", value.line)
        yield TitanSetting("model.flavor", flavor, f"{value.name}({_shown(flavor)})", value.line)
    elif policy is not None:
        yield TitanSetting(f"{key}.mode", policy, f"{key}={value.name}(...)", value.line)
        if policy == "selective":
            yield TitanSetting(f"{key}.selective_ac_option", "op", f"{value.name}", value.line)
    elif value.args:
        texts = ", ".join(_shown(argument) for argument in value.args)
        yield TitanSetting(f"{key}.{value.name}", UnreadValue(texts), f"{key}={value.name}({texts})", value.line)
    elif not value.fields:
        yield TitanSetting(f"{key}.{value.name}", True, f"{key}={value.name}()", value.line)
    for name, (held, at) in value.fields.items():
        if (head, name) != ("model_spec", "flavor"):
            yield from _settings_of(f"{head}{'.' if rest else ''}{rest}.{name}", held, at, family)


def _shown(value: Any) -> str:
    match value:
        case UnreadValue():
            return value.expression
        case _Call():
            return f"{value.name}(...)"
        case list():
            return f"[{', '.join(map(_shown, value))}]"
        case str():
            return f'"{value}"'
        case _:
            return str(value)
