"""The plans that come with ssdsl: the examples and the standard library, by name."""

from pathlib import Path

from ssdsl.lang.assets import assets_folder
from ssdsl.lang.errors.files import NoSuchFile
from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import PlanError


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
    if path.parts[:1] in (("examples",), ("stdlib",)) and len(path.parts) == 2:
        shipped = assets_folder(path.parts[0]) / path.name
        return shipped if shipped.exists() else path
    return path


def shipped_plans() -> list[tuple[str, Path]]:
    """The examples and the standard library by name; an example comes before a library file of its name."""
    found: dict[str, Path] = {}
    for folder in ("examples", "stdlib"):
        for path in sorted(assets_folder(folder).glob("*.ssp")):
            found.setdefault(path.stem, path)
    return list(found.items())
