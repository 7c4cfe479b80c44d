"""The program's text: goldens of a small one, and what holds for all."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ssdsl.codegen.write import program_files, write_program
from ssdsl.compile import compile_plan
from ssdsl.model.graph import Graph
from ssdsl.model.load import load
from ssdsl.model.load.model import Model
from ssdsl.model.module_to_graph import capture
from ssdsl.runtime import NAMES
from ssdsl.workspace import Compiled

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAM = """
import sys
from pathlib import Path
from ssdsl.codegen.write import program_files
from ssdsl.compile import compile_plan
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture

compiled = compile_plan(Path(sys.argv[2]), capture(load(sys.argv[1])), {})
for name, text in program_files(compiled.program).items():
    print(name, text)
"""


@pytest.fixture(scope="module")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Graph]:
    """The model by a name without a folder, which the program repeats."""
    before = Path.cwd()
    os.chdir(HERE)
    try:
        model = load("mlp.py:mlp")
        return model, capture(model)
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def compiled(mlp: tuple[Model, Graph]) -> Compiled:
    return compile_plan(HERE / "mlp.ssp", mlp[1], {})


@pytest.fixture(scope="module")
def files(compiled: Compiled) -> dict[str, str]:
    return program_files(compiled.program)


@pytest.mark.parametrize("name", ["role_gpus_pp0.py", "role_gpus_pp1.py", "program.json"])
def test_the_files_are_the_goldens(files: dict[str, str], golden: Callable[[Path, str], None], name: str) -> None:
    golden(HERE / "goldens" / f"{name}.txt", files[name])


def test_a_file_per_role(files: dict[str, str]) -> None:
    assert list(files) == ["role_gpus_pp0.py", "role_gpus_pp1.py", "program.json"]


def test_code_parses_and_data_is_json(files: dict[str, str]) -> None:
    for name, text in files.items():
        if name.endswith(".py"):
            ast.parse(text)
            compile(text, name, "exec")
        else:
            json.loads(text)


def test_code_imports_what_the_runtime_has(files: dict[str, str]) -> None:
    for name, text in files.items():
        if name.endswith(".py"):
            imports = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ImportFrom) and n.module == "runtime"]
            assert imports and {a.name for node in imports for a in node.names} <= {*NAMES}


def test_equal_layers_share_one_function(files: dict[str, str]) -> None:
    text = files["role_gpus_pp1.py"]
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert functions == ["constants", "prepare", "layers", "block1", "step", "after_update"]
    assert 'y = layers(add_1, weights, "layers.2", m)' in text and 'layers(y, weights, "layers.3", m)' in text


@pytest.mark.slow
def test_the_same_plan_gives_the_same_bytes(files: dict[str, str]) -> None:
    """In a process with other hashes of strings, so that no order of a set can show."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    command = [sys.executable, "-c", PROGRAM, "mlp.py:mlp", str(HERE / "mlp.ssp")]
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=HERE, env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "".join(f"{name} {text}\n" for name, text in files.items())


def test_wider_meshes_change_only_the_numbers(mlp: tuple[Model, Graph], tmp_path: Path) -> None:
    """Replicas add no code: one function per role, whatever the number of its ranks."""
    text = (HERE / "mlp.ssp").read_text().replace("into m = 2", "into dp, m = 2")
    sizes = []
    for replicas in (2, 4):
        plan = tmp_path / f"dp{replicas}.ssp"
        plan.write_text(text.replace("tp = 2)", f"dp = {replicas}, tp = 2)"))
        files = program_files(compile_plan(plan, mlp[1], {}).program)
        sizes.append([len(text) for name, text in files.items() if name != "program.json"])
    assert all(abs(a - b) < 40 for a, b in zip(*sizes, strict=True))


def test_the_folder(mlp: tuple[Model, Graph], compiled: Compiled, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    for _ in range(2):  # the second replaces the first
        write_program(compiled.program, mlp[0], folder, compiled.source)
        names = {path.name for path in folder.iterdir()}
        roles = {"role_gpus_pp0.py", "role_gpus_pp1.py"}
        tensors = {"weights.pt", "inputs.pt", "names.json"}
        assert names == {"__init__.py", "main.py", "plan.ssp", "program.json", "runtime", *tensors, *roles}
        assert [path.name for path in tmp_path.iterdir()] == ["program"]
    assert (folder / "plan.ssp").read_bytes() == (HERE / "mlp.ssp").read_bytes()


def test_another_folder_is_left_alone(mlp: tuple[Model, Graph], compiled: Compiled, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("ten years of work")
    with pytest.raises(FileExistsError):
        write_program(compiled.program, mlp[0], tmp_path, compiled.source)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
