"""The plans that come with ssdsl: the examples, those of papers among them, and the standard library, by name."""

from pathlib import Path

from ssdsl.lang.assets import assets_folder
from ssdsl.lang.errors.files import NoSuchFile
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import PlanError

FOLDERS = (Path("examples"), Path("examples/papers"), Path("stdlib"))


def plan_path(name: str) -> Path:
    """The file of PLAN: as given, or else an example or a plan of the standard library by its name."""
    path = Path(name)
    if path.suffix == ".ssp" or path.exists() or len(path.parts) > 1:
        return path if path.exists() else _shipped_path(path)
    shipped = dict(shipped_plans())
    if name not in shipped:
        beside = [p.name for p in Path().glob("*.ssp")]
        raise PlanError(NoSuchFile(None, name, suggest(name, [*shipped, *beside])))
    return shipped[name]


def _shipped_path(path: Path) -> Path:
    """`examples/megatron.ssp` names the shipped one where there is no such file, as outside a checkout."""
    shipped = _folder(path.parent) / path.name if path.parent in FOLDERS else path
    return shipped if shipped.exists() else path


def _folder(path: Path) -> Path:
    return assets_folder(path.parts[0]).joinpath(*path.parts[1:])


def example_plans() -> list[Path]:
    """The plans for any model, which come with ssdsl."""
    return sorted(_folder(FOLDERS[0]).glob("*.ssp"))


def shipped_plans() -> list[tuple[str, Path]]:
    """The plans of all folders by name; an example comes before a library file of its name."""
    found: dict[str, Path] = {}
    for folder in FOLDERS:
        for path in sorted(_folder(folder).glob("*.ssp")):
            found.setdefault(path.stem, path)
    return list(found.items())
