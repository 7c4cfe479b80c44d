"""What goes wrong with messages between roles."""

import itertools
from collections.abc import Callable, Iterator

from ssdsl.ir.comm import Move, Transfer
from ssdsl.ir.program import Program
from ssdsl.record import replace
from tests.prove.mutations.mutant import (
    Found,
    axes_of,
    mutation,
    put,
)


def _moves(program: Program) -> Iterator[tuple[str, Move, Callable[[Move | None], Program]]]:
    for n, message in enumerate(program.messages):
        if not isinstance(message, Transfer):
            continue
        for end in ("forward", "backward"):
            if (move := getattr(message, end)) is not None:

                def become(new: Move | None, n: int = n, message: Transfer = message, end: str = end) -> Program:
                    return replace(program, messages=put(program.messages, n, replace(message, **{end: new})))

                yield f"transfer {n} {end}", move, become


@mutation
def piece_dropped(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k in range(len(move.pieces)):
            yield f"{where} {k}", become(replace(move, pieces=put(move.pieces, k)))


@mutation
def piece_doubled(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k, piece in enumerate(move.pieces):
            yield f"{where} {k}", become(replace(move, pieces=put(move.pieces, k, piece, piece)))


@mutation
def pieces_exchanged(program: Program) -> Found:
    for where, move, become in _moves(program):
        for (j, a), (k, b) in itertools.combinations(enumerate(move.pieces), 2):
            if a.source != b.source:
                new = put(put(move.pieces, j, replace(a, source=b.source)), k, replace(b, source=a.source))
                yield f"{where} sources {j} {k}", become(replace(move, pieces=new))
            if a.target != b.target:
                new = put(put(move.pieces, j, replace(a, target=b.target)), k, replace(b, target=a.target))
                yield f"{where} targets {j} {k}", become(replace(move, pieces=new))
            if a.source_box != b.source_box:
                new = put(
                    put(move.pieces, j, replace(a, source_box=b.source_box)), k, replace(b, source_box=a.source_box)
                )
                yield f"{where} boxes {j} {k}", become(replace(move, pieces=new))


@mutation
def box_shifted(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k, piece in enumerate(move.pieces):
            for end in ("source_box", "target_box"):
                for f, (start, n) in enumerate(getattr(piece, end)):
                    for new in ((start + 1, n), (start, n - 1)):
                        box = put(getattr(piece, end), f, new)
                        yield (
                            f"{where} {k} {end} {f} {new}",
                            become(replace(move, pieces=put(move.pieces, k, replace(piece, **{end: box})))),
                        )


@mutation
def aligned_changed(program: Program) -> Found:
    for where, move, become in _moves(program):
        for k in range(len(move.aligned)):
            yield f"{where} - {move.aligned[k]}", become(replace(move, aligned=put(move.aligned, k)))
        for axis in axes_of(program):
            if axis not in move.aligned:
                yield f"{where} + {axis}", become(replace(move, aligned=(*move.aligned, axis)))


@mutation
def gradient_not_sent(program: Program) -> Found:
    for where, _, become in _moves(program):
        if where.endswith("backward"):
            yield where, become(None)
