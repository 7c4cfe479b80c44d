"""`precision OPS to bf16`: a plan trains as one device does with the same casts."""

from collections.abc import Callable
from pathlib import Path

from tests.verify.conftest import Program, plan_path


def test_stages_and_parts_train_as_one_device(program: Callable[..., Program], tmp_path: Path) -> None:
    path = tmp_path / "cast.ssp"
    path.write_text(f"{plan_path('megatron').read_text()}precision model - model.layer_norm to bf16\n")
    program(path, M=2, R=1).verify()
