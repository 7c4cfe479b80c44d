"""Builds the site: `python docs/site/build.py build/site`.

Sphinx reads a folder of sources beside the result, `build/site-sources`. It has the pages of the repository at their
own places, so that their links hold, and pages that are written here: of diagnostics, of plans and of other files that
pages link to. Nothing else is written, and nothing is fetched.
"""

import argparse
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from api_text import api_text  # noqa: E402
from diagnostics import diagnostic_pages  # noqa: E402
from first_page import PLAYGROUND, first_page  # noqa: E402
from llms import llms_text  # noqa: E402
from repository import repository_pages  # noqa: E402
from sphinx.cmd.build import build_main  # noqa: E402
from timeline import colours, page, picture, step_of  # noqa: E402


def build(folder: Path, playground: Path, jobs: int) -> int:
    """Writes the site into a folder, with what lies in `playground` if that exists. Returns Sphinx's exit status."""
    sources, doctrees = (folder.with_name(f"{folder.name}-{name}") for name in ("sources", "doctrees"))
    pages = repository_pages(ROOT) | diagnostic_pages(ROOT) | {"api.md": (HERE / "api.md").read_text("utf-8")}
    plays = {"playground.md": PLAYGROUND} if playground.is_dir() else {}
    step = step_of(HERE / "first.ssp")
    shutil.rmtree(sources, ignore_errors=True)
    write(sources, pages | plays | {"index.md": first_page(picture(step), bool(plays))})
    for image in [*ROOT.glob("docs/*.svg"), *ROOT.glob("docs/*.png")]:
        shutil.copy2(image, sources / "docs")
    options = ["-q", "-W", "--keep-going", "-j", str(jobs), "-c", str(HERE), "-d", str(doctrees)]
    status = build_main([*options, str(sources), str(folder)])
    if plays:
        shutil.copytree(playground, folder / "playground", dirs_exist_ok=True)
    pages["api.md"] = api_text(pages["api.md"])
    write(folder, pages | {"llms.txt": llms_text(pages), "timeline.html": page(step)})
    with (folder / "_static" / "site.css").open("a") as style:
        style.write(colours())
    return status


def write(folder: Path, texts: dict[str, str]) -> None:
    """Writes files that have changed: Sphinx reads only these again."""
    for name, text in texts.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "site")
    parser.add_argument("--playground", type=Path, default=ROOT / "build" / "page", help="a folder of static files")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    sys.exit(build(given.folder.resolve(), given.playground, given.jobs))
