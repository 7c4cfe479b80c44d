"""Programs that are started as processes."""

from pathlib import Path

import pytest

from ssdsl.codegen.write import write_program
from ssdsl.compile import compile_plan
from ssdsl.model.load import load
from ssdsl.model.module_to_graph import capture

CODEGEN = Path(__file__).parent.parent / "codegen"


@pytest.fixture(scope="session")
def mlp_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages of two tensor-parallel ranks each."""
    folder = tmp_path_factory.mktemp("mlp") / "program"
    model = load(f"{CODEGEN / 'mlp.py'}:mlp")
    compiled = compile_plan(CODEGEN / "mlp.ssp", capture(model), {})
    write_program(compiled.program, model, folder, compiled.source)
    return folder
