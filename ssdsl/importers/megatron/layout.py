"""The text of `--pipeline-model-parallel-layout`: which layers a stage has.

Source of the grammar: `PipelineParallelLayerLayout` of megatron-core 0.16.1.
"""

import re

LETTERS = "EtmL"
# `(tt|)*29` first, then `t*3`: one after the other, and none within another.
REPEATED = (re.compile(r"\(([^)]+)\)\*(\d+)"), re.compile(r"(.)\*(\d+)"))
LONGEST = 1 << 20


def stages_of(text: str) -> tuple[str, ...] | None:
    """The letters of each stage; None where others stand in the text.

    >>> stages_of("Et*3|(tt|)*2,m|L")
    ('Ettt', 'tt', 'tt', 'm', 'L')
    """
    text = text.replace(",", "")
    for pattern in REPEATED:
        if sum(int(count) * len(part) for part, count in pattern.findall(text)) > LONGEST:
            return None
        text = pattern.sub(lambda found: found[1] * int(found[2]), text)
    return tuple(text.split("|")) if not text.strip(f"{LETTERS}|") else None


def problem_of(stages: tuple[str, ...], layers: int, devices: int) -> str:
    """The reason why stages are none of a model with so many layers, or ""."""
    flat = "".join(stages)
    if len(stages) % devices:
        return f"its {len(stages)} stages are no multiple of {devices} devices"
    if flat[:1] != "E" or flat.count("E") > 1:
        return "the embedding `E` is not its first letter, once"
    if flat[-1:] != "L" or flat.count("L") > 1:
        return "the loss `L` is not its last letter, once"
    if "t" in flat[flat.find("m") :] and "m" in flat:
        return "a layer `t` stands behind `m`"
    return f"it has {flat.count('t')} layers `t`, the model {layers}" if layers and flat.count("t") != layers else ""


def before(stages: tuple[str, ...]) -> tuple[int, ...]:
    """The number of the layer with which each stage but the first begins."""
    return tuple("".join(stages[:n]).count("t") for n in range(1, len(stages)))
