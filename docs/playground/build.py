"""Makes the playground: one folder of static files, which runs the compiler in a browser and asks no other host.

    python docs/playground/build.py OUT

It fetches Pyodide by npm and the packages that the compiler imports by pip, each in a pinned version, compiles them and
ssdsl for the page's Python, and captures the graphs of the models. What it fetches and captures is kept in
`build/playground`.
"""

import argparse
import ast
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = ROOT / "build" / "playground"
sys.path.insert(0, str(ROOT))

from ssdsl.playground.catalogue import MODELS, catalogue, graph_file, timeline_page  # noqa: E402
from ssdsl.show.charts.timeline_html import FOLDER  # noqa: E402

WHEELS = {
    "lark": "1.3.1",
    "rich": "15.0.0",
    "msgspec": "0.22.0",
    "networkx": "3.6.1",
}
# tags of the wheels of Pyodide 314, the version in package.json
PYODIDE = "--platform=pyemscripten_2026_0_wasm32 --python-version=3.14 --implementation=cp --abi=cp314".split()
RUNTIME = "pyodide.mjs pyodide.asm.mjs pyodide.asm.wasm python_stdlib.zip pyodide-lock.json".split()
FIRST = "ssdsl.playground.answer"  # the module that the page imports
HEAVY = {"torch", "transformers", "numpy"}
SMALLEST = 9  # level of compression
MOST_BYTES = 6_000_000  # of all but Pyodide
MISSING = 2  # the status where what it fetches cannot be had


def main(out: Path, models: Sequence[str]) -> None:
    """Makes the folder `out` anew, with the graphs of these models."""
    pyodide, packages = fetched_pyodide(), fetched_wheels()
    shutil.rmtree(out, ignore_errors=True)
    (out / "graphs").mkdir(parents=True)
    (out / "pyodide").mkdir()
    for name in RUNTIME:
        shutil.copy(pyodide / name, out / "pyodide")
    style, script = (HERE / f"timeline.{kind}" for kind in ("css", "js"))
    for path in (HERE / "index.html", HERE / "page.css", *({*HERE.glob("*.js")} - {script}), FOLDER / "colours.css"):
        shutil.copy(path, out)
    (out / "timeline.html").write_text(timeline_page(style.read_text("utf-8"), script.read_text("utf-8")), "utf-8")
    (out / "catalogue.json").write_text(json.dumps(catalogue(commit(), models), separators=(",", ":")), "utf-8")
    for model in models:
        (out / "graphs" / graph_file(model)).write_bytes(graph(model))
    (out / "python.bin").write_bytes(compiled(packages))
    report(out)


def commit() -> str:
    """The commit that is checked out, or nothing."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


# -- what is fetched ---------------------------------------------------------------------------------------------------


def fetched_pyodide() -> Path:
    """The folder in which npm has installed Pyodide."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        missing("the playground needs npm and node, which fetch and run Pyodide: install Node.js 20 or newer")
    KEPT.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "package.json", KEPT)
    fetch("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error")
    return KEPT / "node_modules" / "pyodide"


def fetched_wheels() -> list[Path]:
    """The wheels of the packages that the compiler imports, for the page's Python."""
    folder = KEPT / "wheels"
    patterns = {name: f"{name}-{version}-*.whl" for name, version in WHEELS.items()}
    for name, pattern in patterns.items():
        if not [*folder.glob(pattern)]:
            command = ["pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
            fetch(sys.executable, "-m", *command, *PYODIDE, f"{name}=={WHEELS[name]}")
    return [next(folder.glob(pattern)) for pattern in patterns.values()]


def fetch(*command: str) -> None:
    """Runs a command that asks another host; the status of the build says so where it fails."""
    if run(*command):
        missing(f"this failed: {' '.join(command)}")


def missing(reason: str) -> NoReturn:
    print(reason, file=sys.stderr)
    raise SystemExit(MISSING)


def run(*command: str) -> int:
    """The status of a command, which runs in the folder that is kept, and whose output is not shown."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=KEPT, env=environment, stdout=subprocess.DEVNULL, check=False).returncode


# -- graphs ------------------------------------------------------------------------------------------------------------


def graph(model: str) -> bytes:
    """The captured graph of a model, compressed again."""
    path = KEPT / graph_file(model)
    if run(sys.executable, "-m", "ssdsl", "capture", model, "--out", str(path)):
        raise SystemExit(f"{model} is not captured")
    file = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=SMALLEST) as new:
        for name in old.namelist():
            new.writestr(zipfile.ZipInfo(name), old.read(name), zipfile.ZIP_DEFLATED)
    return file.getvalue()


# -- Python ------------------------------------------------------------------------------------------------------------


def compiled(packages: Iterable[Path]) -> bytes:
    """The compiler and its packages as a compressed tar archive: `site` is what is imported, `cache` the user's."""
    stage = KEPT / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    site, cache = stage / "site", stage / "cache"
    cache.mkdir(parents=True)
    for wheel in packages:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if ".dist-info/" not in name])
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ssdsl", site / "ssdsl", ignore=ignored)
    for name in ("grammar", "stdlib"):
        shutil.copytree(ROOT / name, site / "ssdsl" / "_assets" / name)
    for path in {*site.rglob("*.py")} - reached(site, FIRST):
        path.unlink()
    shutil.copy(HERE / "compile.mjs", KEPT)
    if run("node", "compile.mjs", str(site), str(cache)):
        raise SystemExit("Python is not compiled")
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in stage.rglob("*") if path.is_file()):
            data = path.read_bytes()
            member = tarfile.TarInfo(path.relative_to(stage).as_posix())
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(file.getvalue(), SMALLEST, mtime=0)


def reached(site: Path, first: str) -> set[Path]:
    """The files of the modules that one needs: all that it imports, itself or through others, at their top or inside of
    functions, without those that cannot be imported where there is no torch."""
    files = {_module(path.relative_to(site)): path for path in site.rglob("*.py")}
    every: dict[str, set[str]] = {}
    at_top: dict[str, set[str]] = {}
    for name, path in files.items():
        body = ast.parse(path.read_bytes()).body
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        every[name] = {*_imports(body, package, inside=True)}
        at_top[name] = {*_imports(body, package, inside=False)}
    heavy, left = set[str](), {name for name, needs in at_top.items() if HEAVY & {n.partition(".")[0] for n in needs}}
    while left - heavy:
        heavy |= left
        left = {name for name, needs in at_top.items() if needs & heavy}
    found, new = set[str](), {first}
    while new:
        found |= new
        needed = {part for name in new for need in every[name] for part in _with_packages(need)}
        new = (needed & files.keys()) - found - heavy
    return {files[name] for name in found}


def _module(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _imports(body: list[ast.stmt], package: str, inside: bool) -> Iterator[str]:
    """The names that statements import, also those that may be modules; `inside` functions as well."""
    for node in body:
        match node:
            case ast.Import(names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module, names, level):
                parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                source = ".".join([*parents, *([module] if module else [])])
                yield from (source, *(f"{source}.{alias.name}" for alias in names))
            case ast.If(ast.Name("TYPE_CHECKING"), _, orelse):
                yield from _imports(orelse, package, inside)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not inside:
                pass
            case _:
                blocks = [
                    child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)
                ]
                yield from _imports(blocks, package, inside)  # type: ignore[arg-type]


# -- the size ----------------------------------------------------------------------------------------------------------


def report(out: Path) -> None:
    """Prints the sizes of the folder's files; ends with an error if ours are too large."""
    sizes = {path.relative_to(out): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}
    for path, size in sizes.items():
        print(f"{size:>12,}  {path}")
    theirs = sum(size for path, size in sizes.items() if path.parts[0] == "pyodide")
    ours = sum(sizes.values()) - theirs
    print(f"{ours:>12,}  bytes of ssdsl, its packages and graphs, beside {theirs:,} of Pyodide: {out}")
    if ours > MOST_BYTES:
        raise SystemExit(f"that is more than {MOST_BYTES:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the playground, a folder of static files.")
    parser.add_argument("out", type=Path, help="the folder, which is made anew")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, help="those that it has graphs of")
    options = parser.parse_args()
    main(options.out.resolve(), options.models)
