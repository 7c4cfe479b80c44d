"""`python -m bench hfplans`: the plans of transformers, type by type: imported, proved, compared, and run by
transformers on two processes. Adds to `bench/results/hfplans.json`; `--page` prints the section of `docs/works.md`.

Runs need `accelerate`, without which transformers loads no model with a plan.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from bench.hfplans.page import page
from bench.hfplans.trial import try_type
from ssdsl.lang.save import save_text

RESULTS = Path(__file__).parents[1] / "results" / "hfplans.json"
LIMIT_S = 240.0


def main(arguments: list[str]) -> int:
    """2 if nothing can be run, 0 otherwise: what is found is on the page, and says nothing of our own code."""
    parser = argparse.ArgumentParser(prog="python -m bench hfplans", description=__doc__)
    parser.add_argument("--type", action="append", help="only this type; may be repeated")
    parser.add_argument("--no-run", action="store_true", help="do not run them")
    parser.add_argument("--no-import", action="store_true", help="do not import them")
    parser.add_argument("--no-compare", action="store_true", help="import only")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for a type")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of results, to which these are added")
    parser.add_argument("--page", action="store_true", help="print the page of the results that are there")
    options = parser.parse_args(arguments)
    if options.page:
        print(page(json.loads(options.results.read_text("utf-8"))))
        return 0
    run = not options.no_run and not options.no_compare
    if run and importlib.util.find_spec("accelerate") is None:
        print("transformers runs its plans with accelerate only: pip install accelerate, or --no-run", file=sys.stderr)
        return 2
    os.environ["HF_HUB_OFFLINE"] = "1"
    scratch = tempfile.TemporaryDirectory()
    os.environ["XDG_CACHE_HOME"] = scratch.name  # no graph of a small model stays
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # tensors are small
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    known = json.loads(options.results.read_text("utf-8"))["types"] if options.results.exists() else []
    found = {one["type"]: one for one in known}
    for kind in options.type or types_with_plans(transformers):
        tried = _in_child(kind, not options.no_compare, run, not options.no_import, options.limit)
        print(_line(tried), file=sys.stderr, flush=True)
        found[kind] = {**found.get(kind, {}), **tried}
        types = [found[name] for name in sorted(found)]
        result = {"transformers": transformers.__version__, "torch": torch.__version__, "types": types}
        save_text(str(options.results), json.dumps(result, indent=1) + "\n")
    return 0


def types_with_plans(library: Any) -> list[str]:
    """The types whose config has a plan for tensors or experts."""
    found = []
    for kind in library.CONFIG_MAPPING:
        config = library.CONFIG_MAPPING[kind]
        if any(getattr(config, f"base_model_{plan}_plan", None) for plan in ("tp", "ep")):
            found.append(kind)
    return found


def _in_child(kind: str, compare: bool, run: bool, imports: bool, limit_s: float) -> dict[str, Any]:
    """What became of a type, in a process of its own, which has so long for it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setpgid(0, 0)
                path.write_text(json.dumps(try_type(kind, compare, run, imports)), "utf-8")
                code = 0
            except Exception:
                (Path(folder) / "failed.txt").write_text(traceback.format_exc(), "utf-8")
            finally:
                os._exit(code)
        end = started + limit_s
        ended = 0
        while not ended and time.monotonic() < end:
            ended, _ = os.waitpid(child, os.WNOHANG)
            time.sleep(0.02)
        if not ended:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if path.exists():
            found: dict[str, Any] = json.loads(_without_places(path.read_text("utf-8")))
        else:
            failed = Path(folder) / "failed.txt"
            lines = failed.read_text("utf-8").strip().splitlines() if failed.exists() else []
            found = {"type": kind, "failed": lines[-1] if lines else f"no end after {limit_s:.0f} s"}
            if lines:
                print("\n".join(lines), file=sys.stderr)
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def _without_places(text: str) -> str:
    """A text without the folders of this machine."""
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w+/|(?:/[\w.+-]+)+/site-packages/", "", text)


def _line(found: dict[str, Any]) -> str:
    """A type in one line, while the bench runs."""
    seen = found.get("seen", {})
    shown = seen.get("failed") or f"{len(seen.get('differ', {}))} differ" if seen else "not run"
    what = (
        found.get("failed")
        or found.get("built")
        or found.get("captured")
        or ("equal" if found.get("right") else "wrong")
    )
    proved = {w: v.get("proved", v.get("imported")) or "proved" for w, v in found.get("imports", {}).items()}
    return f"{found['type']}: {what}; seen: {'equal' if seen.get('equal') else shown}; {proved}; {found['seconds']} s"
