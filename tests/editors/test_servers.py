"""The files for editors do what they say: Neovim, Emacs and the extension of VS Code start `ssdsl lsp`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAN = "# for: --model gpt:tiny\nmesh gpus(dp = 2)\nsplit model by batchh into dp\nassign model to gpus\n"
NEOVIM = """
vim.cmd("edit p.ssp")
vim.wait(60000, function() return #vim.diagnostic.get(0) > 0 end, 50)
for _, d in ipairs(vim.diagnostic.get(0)) do io.stdout:write(d.lnum + 1, " ", d.code, " ", d.message, "\\n") end
vim.cmd("qa!")
"""
EMACS = """
(require 'eglot)
(load (getenv "SSP_MODE"))
(find-file "p.ssp")
(apply #'eglot--connect (eglot--guess-contact))
(let ((end (+ (float-time) 60)))
  (while (and (< (float-time) end) (null (flymake-diagnostics))) (accept-process-output nil 0.1)))
(dolist (d (flymake-diagnostics))
  (princ (format "%s %s\\n" (line-number-at-pos (flymake-diagnostic-beg d)) (flymake-diagnostic-text d))))
"""


def said(command: list[str], folder: Path, **environment: str) -> str:
    (folder / "p.ssp").write_text(PLAN, "utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {**os.environ, "PATH": path, "HOME": str(folder), "XDG_CACHE_HOME": str(folder), **environment}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_neovim(tmp_path: Path) -> None:
    if shutil.which("nvim") is None:
        pytest.skip("there is no Neovim here")
    (tmp_path / "drive.lua").write_text(NEOVIM, "utf-8")
    own = ROOT / "editors" / "neovim" / "ssp.lua"
    text = said(["nvim", "--headless", "--clean", "-c", f"luafile {own}", "-c", "luafile drive.lua"], tmp_path)
    assert "3 E0204 no operator selected here has a dimension `batchh`" in text and "did you mean `batch`?" in text


def test_emacs(tmp_path: Path) -> None:
    if shutil.which("emacs") is None:
        pytest.skip("there is no Emacs here")
    (tmp_path / "drive.el").write_text(EMACS, "utf-8")
    text = said(["emacs", "--batch", "-l", "drive.el"], tmp_path, SSP_MODE=str(ROOT / "editors/emacs/ssp-mode.el"))
    if "eglot" in text and "Cannot open load file" in text:
        pytest.skip("there is no eglot here: elpa-eglot")
    assert "3 ssdsl [E0204]: no operator selected here has a dimension `batchh`" in text


def test_the_extension_of_vs_code(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node here")
    found = json.loads(said(["node", str(ROOT / "editors/vscode/test/extension.mjs")], tmp_path))
    contributed = json.loads((ROOT / "editors/vscode/package.json").read_text("utf-8"))["contributes"]
    assert found["server"] == {"command": "ssdsl", "args": ["lsp"]}
    assert found["registered"] == [one["command"] for one in contributed["commands"]]
    command = {"command": "ssdsl.prove", "arguments": ["file:///p.ssp"]}
    assert found["requests"] == [["workspace/executeCommand", command]]
    assert (found["saved"], found["shown"], found["errors"]) == (1, ["proved"], [])
