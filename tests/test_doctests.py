"""The worked examples in docstrings are right."""

import doctest
import importlib.util
import pkgutil
from collections.abc import Iterator

import pytest

import ssdsl

PACKAGES = ("ir", "rewrite", "lower", "runtime", "codegen", "model", "text", "cluster")


def _modules() -> Iterator[str]:
    for package in PACKAGES:
        for module in pkgutil.walk_packages([f"{ssdsl.__path__[0]}/{package}"], f"ssdsl.{package}."):
            yield module.name


def _examples() -> Iterator[doctest.DocTest]:
    """Of source texts, so that only modules with examples are imported."""
    for name in _modules():
        spec = importlib.util.find_spec(name)
        source = spec.loader.get_source(name) if spec and spec.loader else None  # type: ignore[attr-defined]
        if source and ">>> " in source:
            yield from (t for t in doctest.DocTestFinder().find(importlib.import_module(name)) if t.examples)


EXAMPLES = tuple(_examples())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_an_example_of_a_docstring_gives_what_stands_below_it(example: doctest.DocTest) -> None:
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example, out=said.append)
    assert not said, "".join(said)


def test_arithmetic_of_digits_has_examples() -> None:
    having = {e.name.rpartition(".")[0] for e in EXAMPLES} | {e.name for e in EXAMPLES}
    assert having >= {
        "ssdsl.ir.layout",
        "ssdsl.lower.operators.operand_types",
        "ssdsl.lower.conversions.reshard",
        "ssdsl.lower.conversions.transfer",
        "ssdsl.runtime.layout.cut",
    }
