"""The plans that come with ssdsl, by name: the examples, those of papers among them, and the standard library."""

from pathlib import Path

from ssdsl.lang.assets import assets_folder
from ssdsl.lang.errors.files import NoSuchFile
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import PlanError

FOLDERS = (Path("examples"), Path("examples/papers"), Path("stdlib"))


def plan_path(name: str) -> Path:
    """The file of the argument PLAN: a path as given, or the name of an example or of a plan of the standard library.
    Raises PlanError for an unknown name."""
    path = Path(name)
    if path.suffix == ".ssp" or path.exists() or len(path.parts) > 1:
        return path if path.exists() else _shipped_path(path)
    shipped = dict(shipped_plans())
    if name not in shipped:
        beside = [p.name for p in Path().glob("*.ssp")]
        raise PlanError(NoSuchFile(None, name, suggest(name, [*shipped, *beside])))
    return shipped[name]


def _shipped_path(path: Path) -> Path:
    """The file of a path: the shipped one for `examples/megatron.ssp` where there is no such file, as outside a
    checkout."""
    shipped = _folder(path.parent) / path.name if path.parent in FOLDERS else path
    return shipped if shipped.exists() else path


def _folder(path: Path) -> Path:
    return assets_folder(path.parts[0]).joinpath(*path.parts[1:])


def example_plans() -> list[Path]:
    """The plans for any model that come with ssdsl: the examples, without those of papers."""
    return sorted(_folder(FOLDERS[0]).glob("*.ssp"))


def shipped_plans() -> list[tuple[str, Path]]:
    """The plans of all folders, by name; an example comes before a library file of the same name."""
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted(_folder(folder).glob("*.ssp")):
            found.setdefault(path.stem, path)
    return list(found.items())
