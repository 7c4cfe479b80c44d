"""The text of communication: `all_gather<tp>(1024, dim 1)`, and messages with the boxes that they move."""

from collections.abc import Iterable, Iterator
from typing import assert_never

from ssdsl.ir.comm import (
    AllGather,
    AllReduce,
    AllToAll,
    BoxPiece,
    Exchange,
    KeepFirst,
    Message,
    Move,
    Narrow,
    ReduceScatter,
    Signal,
    Step,
    Transfer,
    joined_cuts,
)
from ssdsl.ir.layout import Cut, Submesh
from ssdsl.ir.param import CompletionStep, SumTiedGrads
from ssdsl.ir.text.types import dtype_text, names_text, regions_text, time_text

IN_TIME = {  # the words of steps along an index in time: nothing travels
    "narrow": "part",
    "keep_first": "first",
    "all_gather": "concat",
    "all_reduce": "sum",
    "exchange": "concat",
}


def steps_text(steps: Iterable[Step], in_place: bool = False) -> str:
    """The steps in order; with `in_place` the first has a `_` behind its name, as in PyTorch."""
    words = [_step(step, "_" if in_place and number == 0 else "") for number, step in enumerate(steps)]
    return ", ".join(words) or "same"


def _step(step: Step, mark: str) -> str:
    match step:
        case AllReduce() | KeepFirst():
            where = ""
        case AllGather():
            where = cut_text(step.source)
        case ReduceScatter() | Narrow():
            where = cut_text(step.target)
        case Exchange():
            where = f"{cut_text(step.source)} for {cut_text(step.target)}{', sums' if step.sums else ''}"
        case AllToAll():
            where = " for ".join(map(_cuts_text, (step.target, step.source)))
        case _:
            assert_never(step)
    if step.in_time:
        return f"{IN_TIME[step.kind]}<{step.axes[0]}>{f'({where})' if where else ''}"
    return f"{step.kind}{mark}<{', '.join(step.axes)}>({', '.join(filter(None, (str(step.elements), where)))})"


def cut_text(cut: Cut) -> str:
    """`dim 1`; or `dim 0 in 3` if each of three equal blocks of the axis is cut."""
    regions = f" at {regions_text(cut.at)}" if cut.at is not None else ""
    return f"dim {cut.dim}" + (f" in {cut.outer}" if cut.outer > 1 else "") + regions


def _cuts_text(cuts: tuple[Cut, ...]) -> str:
    """The digits of the axes of an all_to_all: `dim 0 and dim 0 in 2`."""
    return " and ".join(map(cut_text, joined_cuts(cuts)))


def completion_text(step: CompletionStep) -> str:
    """The text of one step in the completion of a gradient: `reduce_scatter<dp>`."""
    if isinstance(step, SumTiedGrads):
        return f"all_reduce over {names_text(map(str, step.submeshes))}"
    return f"{step.kind}<{', '.join(step.axes)}>"


def message_lines(message: Message, functions: tuple[str, ...]) -> Iterator[str]:
    """Yields the lines of a message: its value, the functions at its ends, and its boxes. `functions` are names."""
    ends = (
        f"from {functions[message.producer]} on {message.source} to {functions[message.consumer]} on {message.target}"
    )
    ends += f", lane {message.lane}" if message.lane else ""
    match message:
        case Signal():
            yield f"message{message.number} = signal {ends}"
            yield from _move("tell", message.forward, message.source, message.target)
        case Transfer():
            yield f"message{message.number} = transfer of %{message.value} {ends}{time_text(message.time)}"
            uneven = "".join(f", factor {factor} of n_{index.name}" for factor, index in message.uneven)
            yield f'  {dtype_text(message.dtype)}, slot "{message.source_slot}" to "{message.target_slot}"{uneven}'
            yield from _move("value", message.forward, message.source, message.target)
            if message.backward is None:
                yield "  no gradient"
            else:
                yield from _move("gradient", message.backward, message.target, message.source)
        case _:
            assert_never(message)


def _move(what: str, move: Move, source: Submesh, target: Submesh) -> Iterator[str]:
    alike = f" at equal {names_text(move.aligned)}" if move.aligned else ""
    sizes = [", ".join(map(str, shape.sizes)) for shape in (move.source_shape, move.target_shape)]
    yield f"  {what}{alike}: [{sizes[0]}] to [{sizes[1]}]{', broadcast' if move.broadcast else ''}"
    ends = [[a for a, _ in submesh.axes if a not in move.aligned] for submesh in (source, target)]
    for piece in move.pieces:
        if piece.source or piece.target or not _is_whole(piece, move):
            left, right = _end(ends[0], piece.source, piece.source_box), _end(ends[1], piece.target, piece.target_box)
            yield f"    {left} to {right}"


def _is_whole(piece: BoxPiece, move: Move) -> bool:
    """Whether a piece is the whole local tensor at both ends."""
    whole = [tuple((0, n) for n in shape.factors) for shape in (move.source_shape, move.target_shape)]
    return [piece.source_box, piece.target_box] == whole


def _end(axes: list[str], at: tuple[int, ...], box: tuple[tuple[int, int], ...]) -> str:
    where = ", ".join(f"{a} = {c}" for a, c in zip(axes, at, strict=True))
    return f"({where})[{', '.join(f'{start}:{start + length}' for start, length in box)}]"
