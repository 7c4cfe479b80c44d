"""docs/glossary.md has every class of the IR, and every rewrite of a plan and pass of the lowering in their order."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import ssdsl.ir
from ssdsl.lower.lower import PASSES
from ssdsl.rewrite.rewrite import REWRITES

GLOSSARY = (Path(__file__).parent.parent.parent / "docs" / "glossary.md").read_text("utf-8")


def test_classes_of_the_ir() -> None:
    missing = []
    for module in pkgutil.iter_modules(ssdsl.ir.__path__, "ssdsl.ir."):
        loaded = importlib.import_module(module.name)
        for name, cls in inspect.getmembers(loaded, inspect.isclass):
            if cls.__module__ == module.name and not name.startswith("_") and f"`{name}`" not in GLOSSARY:
                missing.append(f"{module.name}.{name}")
    assert missing == []


def test_passes_in_order() -> None:
    table = GLOSSARY.partition("## The passes")[2].partition("\n## ")[0]
    rows = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    names = [step.__name__ for step in (*REWRITES, *PASSES)]
    assert [row for row in rows if row in names] == names
