"""Every diagnostic has a plan that shows it, and its text is a golden: `tests/errors/E0203.ssp` and `.err`."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest

from ssdsl.lang.errors.files import FileUnwritable
from ssdsl.lang.errors.text import GIVEN
from ssdsl.lang.parse import parse
from ssdsl.lang.read import LARGEST_BYTES, read_source
from ssdsl.lang.save import FileMark, check_file, reason_of, save_text
from ssdsl.model.graph import Graph
from ssdsl.plan.context import begin
from ssdsl.plan.interpret import interpret_all
from ssdsl.plan.model_index import index_model
from ssdsl.plan.statements.builtins import builtin_scope
from ssdsl.text.diagnostic import REGISTRY, Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source

FOLDER = Path(__file__).parent.parent / "errors"
CODES = sorted(code for code, cls in REGISTRY.items() if cls.__module__.startswith(("ssdsl.lang", "ssdsl.plan")))
FILES = {"E0101", "E0102", "E0103", "E0104", "E0125"}  # of files that are no text: made below
OF_IMAGES = {"E0349"}  # of a model with convolutions: test_other_names.py
OF_GROUPS = {"E0294"}  # of a model whose heads share keys: test_shared_heads.py
OF_ROWS = {"E0383"}  # of an operator without a row: tests/model/ops/test_rows_of_users.py
OF_TYPES = {"E0238", "E0239"}  # of operators without a kernel, and without torch: test_precision.py
OF_LINES = {"E0295"}  # of an axis that is made of several dimensions: test_compress.py
OF_HEADERS = {"E0131"}  # of a model that a header names: tests/lang/test_header.py
OF_RULES = {"E0410"}  # of a rule that rewrites plans: tests/lower/test_errors.py


def diagnostics(path: Path, graph: Graph) -> tuple[Diagnostic, ...]:
    """What is said of a plan; its first line may set parameters: `# set T=8`."""
    text = path.read_text("utf-8")
    first = text.split("\n")[0]
    sets = dict(pair.split("=") for pair in first.removeprefix("# set ").split()) if first.startswith("# set ") else {}
    try:
        script = parse(Source(path.name, text))
        return interpret_all(script, graph, {k: int(v) for k, v in sets.items()}, path.parent)[1]
    except PlanError as e:
        return e.diagnostics


@pytest.mark.parametrize(
    "code",
    [
        c
        for c in CODES
        if c not in FILES | OF_IMAGES | OF_GROUPS | OF_ROWS | OF_TYPES | OF_LINES | OF_HEADERS | OF_RULES
    ],
)
def test_plan_shows_its_diagnostic(code: str, graph: Graph, golden: Callable[[Path, str], None]) -> None:
    start = process_time()
    found = diagnostics(FOLDER / f"{code}.ssp", graph)
    assert process_time() - start < 1
    assert code in {d.code for d in found}
    golden(FOLDER / f"{code}.err", "\n\n".join(map(render, found)) + "\n")
    assert all(d.text(d.help) for d in found), "a help names the change to make"


def test_diagnostics_are_explained() -> None:
    classes = [REGISTRY[code] for code in CODES]
    assert [c.__name__ for c in classes if not c.__doc__ or c.__doc__.startswith(f"{c.__name__}(")] == []


def _missing(folder: Path) -> Path:
    (folder / "megatron.ssp").write_text("")
    return folder / "megatorn.ssp"


def _latin(folder: Path) -> Path:
    (folder / "latin.ssp").write_bytes("# Gr\xf6\xdfe\nlet x = 1\n".encode("latin-1"))
    return folder / "latin.ssp"


def _large(folder: Path) -> Path:
    (folder / "large.ssp").write_bytes(b"let x = 1\n" * (LARGEST_BYTES // 10 * 10))
    return folder / "large.ssp"


@pytest.mark.parametrize(
    ("code", "make"), [("E0101", _missing), ("E0102", lambda folder: folder), ("E0103", _latin), ("E0104", _large)]
)
def test_file_shows_its_diagnostic(
    code: str, make: Callable[[Path], Path], tmp_path: Path, golden: Callable[[Path, str], None]
) -> None:
    path = make(tmp_path)
    start = process_time()
    with pytest.raises(PlanError) as caught:
        read_source(path)
    assert process_time() - start < 1
    text = "\n\n".join(map(render, caught.value.diagnostics)) + "\n"
    golden(FOLDER / f"{code}.err", text.replace(str(tmp_path), "folder"))


def test_a_file_that_cannot_be_written(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError) as caught:
        save_text(str(tmp_path / "file" / "costs.json"), "{}")
    text = "\n\n".join(map(render, caught.value.diagnostics)) + "\n"
    golden(FOLDER / "E0125.err", text.replace(str(tmp_path), "folder"))


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        check_file(str(tmp_path), FileMark.PLAN)
    assert "is a directory" in render(caught.value.diagnostics[0])
    check_file(str(tmp_path / "new.ssp"), FileMark.PLAN)


@pytest.mark.parametrize("mark", FileMark)
def test_a_file_that_ssdsl_did_not_write_is_not_replaced(mark: FileMark, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("split model by batch into dp\n")
    with pytest.raises(PlanError) as caught:
        check_file(str(tmp_path / "file"), mark)
    assert "ssdsl did not write it" in (text := render(caught.value.diagnostics[0])) and "remove this one" in text
    (tmp_path / "file").write_text("")
    check_file(str(tmp_path / "file"), mark)


def test_a_full_disk() -> None:
    full = FileUnwritable(None, "costs.json", reason_of(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert "no space left" in render(full) and "help: free some space there" in render(full)


@pytest.mark.parametrize("name", ["model", "max"])
def test_a_word_that_every_plan_has_is_no_new_name(name: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse(Source("a.ssp", f"{name} = 3\n"))
    (found,) = caught.value.diagnostics
    assert found.code == "E0122" and "every plan has" in render(found) and f"`let {name}_ = ...`" in render(found)


def test_these_words_are_those_of_the_outermost_scope() -> None:
    scope = builtin_scope(begin(index_model(Graph("", (), {}, "", {}, {}))))
    assert set(GIVEN) == scope.values.keys() - scope.free
