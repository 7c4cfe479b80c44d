"""The tree as its reader sees it: a class has a name of its own, a package has few files at its root."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "ssdsl"
MOST = 16  # files at the root of a package, `__init__.py` among them


def test_no_public_class_has_the_name_of_another() -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_packages_have_few_files_at_their_root() -> None:
    sizes = {path.name: len([*path.glob("*.py")]) for path in PACKAGE.iterdir() if path.is_dir()}
    assert {name: size for name, size in sizes.items() if size > MOST} == {}


def test_folders_say_what_they_hold() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), path
