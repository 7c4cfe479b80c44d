"""A real notebook is executed: a cell that is a plan shows tables and a timeline, a wrong one its mistakes."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

RIGHT = (
    "%%ssp --model gpt:tiny --cluster a100x8\nmesh gpus(dp = 4)\nsplit model by batch into dp\nassign model to gpus\n"
)
CELLS = ("%load_ext ssdsl", RIGHT, "_.step.report.step_s", RIGHT.replace("batch", "batchh"), "1 + 1")


def executed(folder: Path) -> list[list[dict[str, Any]]]:
    """What each cell shows."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python", "language": "python"}
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, resources=resources).execute()
    return [cell["outputs"] for cell in notebook.cells]


def test_a_plan_in_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = tmp_path / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    argv = f'["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"]'
    (kernel / "kernel.json").write_text(f'{{"argv": {argv}, "display_name": "Python", "language": "python"}}', "utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    _, shown, step, wrong, last = executed(tmp_path)
    (plan,) = [output for output in shown if output["output_type"] == "execute_result"]
    assert "gpt:tiny on a100x8" in plan["data"]["text/plain"] and "step" in plan["data"]["text/plain"]
    assert "<iframe" in plan["data"]["text/html"] or "<svg" in plan["data"]["text/html"]
    assert 0 < float(step[0]["data"]["text/plain"]) < 1
    said = "".join(str(output.get("text", "")) + str(output.get("data", "")) for output in wrong)
    assert "E0204" in said and "did you mean `batch`?" in said and "Traceback" not in said
    assert last[0]["data"]["text/plain"] == "2"
