"""The numbers of a config that a constructor had read where it failed: those that may be wrong.

A library's message may name none of them (`Padding_idx must be within num_embeddings`). The statement that failed does:

    padding = config.pad_token_id
    self.embed = nn.Embedding(config.vocab_size, config.hidden_size, padding)
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from traceback import walk_tb
from types import FrameType
from typing import Any

CONFIG = "config"


def read_fields(error: Exception) -> Mapping[str, int]:
    """The whole numbers of a config that the innermost statement with such numbers reads, by the names of the fields;
    none if no statement on the way to the error reads any."""
    frames = [*walk_tb(error.__traceback__)]
    for frame, line in reversed(frames):
        if (config := _config_of(frame)) is None:
            continue
        own = getattr(config, "attribute_map", {})  # the field behind a name that all configs have: `n_embd`
        names = dict.fromkeys(own.get(name, name) for name in _fields(frame, line))
        values = {name: getattr(config, name, None) for name in names}
        if found := {name: value for name, value in values.items() if type(value) is int}:
            return found
    return {}


def _config_of(frame: FrameType) -> Any:
    """The config of a frame: an argument, or an attribute of the module."""
    found = frame.f_locals
    return found.get(CONFIG, getattr(found.get("self"), CONFIG, None))


def _fields(frame: FrameType, line: int) -> Iterator[str]:
    """The fields that the statement at a line reads, and those of the assignments above it to names that it uses."""
    try:
        text = textwrap.dedent(inspect.getsource(frame.f_code))
        statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    except (OSError, SyntaxError):  # no file, or a lambda in the middle of a line
        return
    at = line - frame.f_code.co_firstlineno + 1
    around = [s for s in statements if s.lineno <= at <= (s.end_lineno or s.lineno)]
    failed = min(around, key=lambda s: (s.end_lineno or s.lineno) - s.lineno, default=None)
    if failed is None:
        return
    yield from _read(failed)
    used = _names(failed, ast.Load)
    for above in statements:
        if isinstance(above, ast.Assign) and above.lineno < failed.lineno and used & _names(above, ast.Store):
            yield from _read(above)


def _read(statement: ast.stmt) -> Iterator[str]:
    """The names behind `config.` or `self.config.`, and in `getattr(config, "name")`, in the order of the text."""
    expressions = [node for node in ast.walk(statement) if isinstance(node, ast.expr)]
    for node in sorted(expressions, key=lambda n: (n.lineno, n.col_offset)):
        match node:
            case ast.Attribute(value=of, attr=name) if _is_config(of):
                yield name
            case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=str(name)), *_]) if _is_config(of):
                yield name
            case _:
                pass


def _is_config(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name == CONFIG
        case _:
            return False


def _names(statement: ast.stmt, context: type[ast.expr_context]) -> set[str]:
    """The variables that a statement reads, or sets: `padding`, `self.width`."""
    found = set()
    for node in ast.walk(statement):
        match node:
            case ast.Name(id=name, ctx=ctx) if isinstance(ctx, context):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ctx) if isinstance(ctx, context):
                found.add(f"self.{name}")
            case _:
                pass
    return found
