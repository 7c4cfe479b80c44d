"""What a name on the command line stands for: PLAN a file or a shipped plan, and what the shell may complete."""

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


def complete_plan(incomplete: str) -> list[str]:
    """For the shell: shipped plans, and plans in the folder that is being typed."""
    words = [*(name for name, _ in shipped_plans()), *_files(incomplete, "*.ssp")]
    return [word for word in words if word.startswith(incomplete)]


def _files(incomplete: str, pattern: str) -> list[str]:
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        return [str(path) for path in sorted(folder.glob(pattern))]
    except OSError:
        return []


def complete_model(incomplete: str) -> list[str]:
    """For the shell: the zoo in all its sizes, and what models of transformers begin with."""
    from ssdsl.model.zoo import ZOO

    names = [word for name, family in ZOO.items() for word in (name, *(f"{name}:{size}" for size in family.sizes))]
    return [name for name in [*names, "hf:"] if name.startswith(incomplete)]


def complete_cluster(incomplete: str) -> list[str]:
    """For the shell: the known clusters, and TOML files in the folder that is being typed."""
    from ssdsl.cluster.load import known_clusters

    return [word for word in [*known_clusters(), *_files(incomplete, "*.toml")] if word.startswith(incomplete)]
