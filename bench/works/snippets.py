"""What plans say, as snippets that can be put together: each is a plan by itself, and a part of a plan with another."""

from collections.abc import Iterator
from enum import IntEnum

from ssdsl.ir.program import Kernels
from ssdsl.record import Record


class Part(IntEnum):
    """The place of a line in a plan."""

    USE = 0
    LET = 1
    NAMED = 2  # an index whose parts are named cuts its dimension first
    EXPERTS = 3
    BATCH = 4
    SEQ = 5
    MICRO = 6
    LAYERS = 7
    BETWEEN = 8
    SPACE = 9
    STATE = 10
    STAGES = 11
    PLACE = 12
    AFTER = 13


WHOLE = "assign model to gpus"
Line = tuple[Part, str]


class Snippet(Record):
    """Lines with the axes that they name. `pairs_with` are words that a model's family must have among its own."""

    name: str
    about: str
    axes: tuple[tuple[str, int], ...] = ()
    lines: tuple[Line, ...] = ()
    kernels: Kernels = Kernels.EAGER

    @property
    def has_stages(self) -> bool:
        """Whether it says itself where operators run."""
        return any(part is Part.PLACE for part, _ in self.lines)


def plan_of(*snippets: Snippet) -> str:
    """The plan that says all of these: each axis and each line once, in the order of their places."""
    axes = dict(axis for snippet in snippets for axis in snippet.axes) or {"dp": 1}
    lines = sorted((line for snippet in snippets for line in snippet.lines), key=lambda line: line[0])
    if not any(snippet.has_stages for snippet in snippets):
        lines.append((Part.PLACE, WHOLE))
    texts: dict[Part, list[str]] = {part: [] for part in Part}
    for part, text in lines:
        if not any(text in known for known in texts.values()):
            texts[part].append(text)
    mesh = f"mesh gpus({', '.join(f'{name} = {size}' for name, size in axes.items())})"
    blocks = ("\n".join(texts[Part.USE]), mesh, *("\n".join(texts[part]) for part in Part if part is not Part.USE))
    return "\n".join(block for block in blocks if block) + "\n"


def kernels_of(*snippets: Snippet) -> Kernels:
    """How operators run."""
    return next((s.kernels for s in snippets if s.kernels is not Kernels.EAGER), Kernels.EAGER)


ATTENTION = (Part.LET, "let attention = model.scaled_dot_product_attention")
OVER_DP = (Part.BATCH, "split model by batch into dp")
TENSOR = ((Part.USE, "use tensor_parallel: tensor_parallel"), (Part.LAYERS, "tensor_parallel(model)"))
MICRO = (Part.MICRO, "split model by batch into m = 4")
STATE = tuple((Part.STATE, f"split model.{state} by row into dp") for state in ("optimizer", "grads", "weights"))


def _pipeline(name: str, about: str, stages: int, place: str, more: str = "") -> Snippet:
    """Stages on two devices, in an order of the standard library."""
    lines = (
        (Part.USE, f"use pipeline: {name}"),
        MICRO,
        (Part.STAGES, f"let stage = balance(model, {stages})"),
        (Part.PLACE, f"assign stage[s] to gpus[pp = {place}] for s in 0..{stages}"),
        (Part.AFTER, f"{name}(stage, 4{more})"),
    )
    return Snippet(name, about, (("pp", 2),), lines)


VEE = "min(s, 3 - s)"
SNIPPETS = (
    Snippet("dp", "data parallel", (("dp", 2),), (OVER_DP,)),
    Snippet("tp", "tensor parallel", (("tp", 2),), TENSOR),
    Snippet(
        "sp",
        "sequence parallel",
        (("tp", 2),),
        (*TENSOR, (Part.USE, "use sequence_parallel: sequence_parallel"), (Part.BETWEEN, "sequence_parallel(model)")),
    ),
    Snippet(
        "ring",
        "the sequence, keys around a ring",
        (("cp", 2),),
        (ATTENTION, (Part.SEQ, "split model by seq into cp"), (Part.SEQ, "split attention by seq.keys into cp")),
    ),
    Snippet(
        "ulysses",
        "heads in attention, the sequence elsewhere",
        (("u", 2),),
        (ATTENTION, (Part.SEQ, "split attention by heads into u"), (Part.SEQ, "split model - attention by seq into u")),
    ),
    _pipeline("gpipe", "a pipeline, GPipe", 2, "s"),
    _pipeline("one_f_one_b", "1F1B", 2, "s"),
    _pipeline("eager_one_f_one_b", "1F1B with more in flight", 2, "s"),
    _pipeline("interleaved", "two stages on a device", 4, "s % 2", ", 2"),
    _pipeline("zb_h1", "Zero Bubble, ZB-H1", 2, "s"),
    _pipeline("zb_h2", "Zero Bubble, ZB-H2", 2, "s"),
    _pipeline("zb_v", "Zero Bubble in a V", 4, VEE),
    _pipeline("dual_pipe_v", "DualPipe in a V", 4, VEE),
    _pipeline("v_half", "V-Half", 4, VEE),
    Snippet(
        "chimera",
        "two pipelines in opposite directions: parts by name",
        (("pp", 2),),
        (
            (Part.USE, "use pipeline: chimera, opposite"),
            (Part.NAMED, "split model by batch into way = 2, m = 2"),
            (Part.STAGES, "let stage = balance(model, 2)"),
            (Part.PLACE, "opposite(stage, [gpus[pp = s] for s in 0..2])"),
            (Part.AFTER, "chimera(stage, 2)"),
        ),
    ),
    Snippet("zero1", "the optimizer's state in parts", (("dp", 2),), (OVER_DP, *STATE[:1])),
    Snippet("zero2", "and gradients", (("dp", 2),), (OVER_DP, *STATE[:2])),
    Snippet("zero3", "and weights", (("dp", 2),), (OVER_DP, *STATE)),
    Snippet(
        "prefetch",
        "weights two modules ahead",
        (("dp", 2),),
        (OVER_DP, *STATE, (Part.AFTER, "prefetch model.weights by 2")),
    ),
    Snippet(
        "keep",
        "gathered weights stay for the step",
        (("dp", 2),),
        (OVER_DP, *STATE, (Part.AFTER, "keep model.weights through step")),
    ),
    Snippet(
        "host",
        "the optimizer's state on the host",
        (("dp", 2),),
        (OVER_DP, *STATE[:1], (Part.AFTER, "assign model.optimizer to host")),
    ),
    Snippet(
        "experts",
        "experts over devices, and the batch elsewhere",
        (("ep", 2),),
        (
            (Part.LET, 'let experts = model["experts"]'),
            (Part.EXPERTS, "split experts by experts into ep"),
            (Part.BATCH, "split model - experts by batch into ep"),
        ),
    ),
    Snippet(
        "spatial", "blocks of an image", (("h", 2),), ((Part.SPACE, "split model by height into h where possible"),)
    ),
    Snippet("recompute", "all repeated modules again in backward", (), ((Part.AFTER, "recompute model"),)),
    Snippet(
        "by name",
        "one micro-batch of four again in backward",
        (),
        ((Part.NAMED, MICRO[1]), (Part.AFTER, "recompute model[m = 0]")),
    ),
    Snippet("bf16", "all operators in bfloat16", (), ((Part.AFTER, "precision model to bf16"),)),
    Snippet("compiled", "kernels of torch.compile", (), (), Kernels.COMPILED),
)


def pairs() -> Iterator[tuple[Snippet, Snippet]]:
    """Each snippet with itself, and with each that stands behind it."""
    for number, first in enumerate(SNIPPETS):
        yield from ((first, second) for second in SNIPPETS[number:])
