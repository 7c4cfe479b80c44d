"""Shell completion of plans, models and clusters."""

from pathlib import Path

from ssdsl.lang.shipped import shipped_plans


def complete_plan(incomplete: str) -> list[str]:
    """The shipped plans, and plans in the folder that is being typed."""
    words = [*(name for name, _ in shipped_plans()), *_files(incomplete, "*.ssp")]
    return [word for word in words if word.startswith(incomplete)]


def _files(incomplete: str, pattern: str) -> list[str]:
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        return [str(path) for path in sorted(folder.glob(pattern))]
    except OSError:
        return []


def complete_model(incomplete: str) -> list[str]:
    """The models of the zoo in all sizes, and the prefix of models of transformers."""
    from ssdsl.model.zoo import ZOO

    names = [word for name, family in ZOO.items() for word in (name, *(f"{name}:{size}" for size in family.sizes))]
    return [name for name in [*names, "hf:"] if name.startswith(incomplete)]


def complete_cluster(incomplete: str) -> list[str]:
    """The known clusters, and TOML files in the folder that is being typed."""
    from ssdsl.cluster.load import known_clusters

    return [word for word in [*known_clusters(), *_files(incomplete, "*.toml")] if word.startswith(incomplete)]
