"""docs/glossary.md or docs/ir.md has each class of the IR, docs/design.md each rule and pass in its order."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import ssdsl.ir
from ssdsl.lower.lower import PASSES
from ssdsl.rewrite.rewrite import REWRITES

DOCS = Path(__file__).parent.parent.parent / "docs"
GLOSSARY, IR, DESIGN = ((DOCS / f"{page}.md").read_text("utf-8") for page in ("glossary", "ir", "design"))


def test_classes_of_the_ir() -> None:
    missing = []
    for module in pkgutil.iter_modules(ssdsl.ir.__path__, "ssdsl.ir."):
        loaded = importlib.import_module(module.name)
        for name, cls in inspect.getmembers(loaded, inspect.isclass):
            if cls.__module__ == module.name and not name.startswith("_") and f"`{name}`" not in GLOSSARY + IR:
                missing.append(f"{module.name}.{name}")
    assert missing == []


def test_rules_and_passes_in_order() -> None:
    tables = [part.partition("\n\n")[0] for part in DESIGN.split(" | file | result |")[1:]]
    cells = [line.split("|")[1] for table in tables for line in table.splitlines() if line.startswith("| `")]
    assert re.findall(r"`(\w+)`", "".join(cells)) == [step.__name__ for step in (*REWRITES, *PASSES)]
