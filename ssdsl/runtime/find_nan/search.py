"""Runs a step again under a watch, and says on all ranks alike where its numbers stop being finite."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, assert_never

import torch

from ..errors import EngineError
from ..program.codec import from_json, to_json
from ..step.parts import LocalTensor
from ..step.rank_program import RankProgram
from .given import in_batch, in_constants, in_weights
from .origins import Arrived, Findings, Given, Made, Origin, OriginOnRank, at_text, first_origin, start_of
from .watch import Watch
from .watched_transport import WatchedTransport

SHOWN = 4  # tensors that are told
ALLOW = "or go on with `allow_nan=True`, `--allow-nan`"
DATA = "correct the data, or leave such samples out"
GENTLER = "lower the learning rate, or clip the gradients (`clip=1.0`, `--clip 1`)"


def told_by_given(
    fact: str, share: RankProgram, batch: Mapping[str, torch.Tensor], held: Sequence[LocalTensor], since: str
) -> EngineError:
    """The error for a step whose loss is not finite, by a look at what the step was given. Called by all ranks."""
    found = [given for _, given in (*in_batch(share, batch), *in_weights(held, _trained(share))) if given.is_wrong]
    all_ranks = _of_all_ranks(found, share)
    if not all_ranks:
        search = "say which operator made it: `find_nan=True`, `--find-nan`"
        return EngineError(f"{fact}\n  the batch and the weights are finite", f"{search}; {GENTLER}; {ALLOW}")
    are_data = any(given.is_batch for _, given in all_ranks)
    lines = [f"{given.given}, on rank {rank}" for rank, given in all_ranks if given.is_batch == are_data][:SHOWN]
    change = DATA if are_data else f"{GENTLER}, from a checkpoint of an earlier step"
    return EngineError("\n  ".join([fact, *lines, *([] if are_data else [since])]), f"{change}; {ALLOW}")


def told_by_update(fact: str, share: RankProgram, held: Sequence[LocalTensor], lr: object) -> EngineError:
    """The error for an update that made weights that are not finite, of gradients that are. Called by all ranks."""
    all_ranks = _of_all_ranks([given for _, given in in_weights(held, _trained(share))], share)
    lines = [f"{given.given}, on rank {rank}" for rank, given in all_ranks if given.is_wrong][:SHOWN]
    change = f"{GENTLER}, from a checkpoint of an earlier step"
    return EngineError("\n  ".join([fact, *lines, f"its gradients were finite; the learning rate is {lr}"]), change)


def _of_all_ranks(mine: Sequence[Given], share: RankProgram) -> list[tuple[int, Given]]:
    """What all ranks have found, each tensor once, with the first rank that has it."""
    said = share.world.control.all_gather(to_json(mine).encode())
    found: dict[str, tuple[int, Given]] = {}
    for rank, text in enumerate(said):
        for given in from_json(tuple[Given, ...], text.decode()):
            found.setdefault(given.given.partition(" is ")[0], (rank, given))
    return [*found.values()]


def found_again(
    fact: str,
    share: RankProgram,
    batch: Mapping[str, torch.Tensor],
    held: Sequence[LocalTensor],
    since: str,
    *,
    in_loss: bool,
    run: Callable[[], None],
) -> EngineError:
    """The error for a step whose loss, or a gradient, is not finite. `run` is the step, which runs once more, under a
    watch. Called by all ranks."""
    mine = _watched(share, batch, held, run)
    findings = [from_json(Findings, text.decode()) for text in share.world.control.all_gather(to_json(mine).encode())]
    if (start := start_of(findings, in_loss=in_loss)) is None:
        reason = f"{fact}\n  when the step was run again, all its numbers were finite: they differ from run to run"
        return EngineError(reason, "look for kernels that are not deterministic: `torch.use_deterministic_algorithms`")
    source = first_origin(findings, start[0])
    lines, change = _told(findings, source, since)
    if start[1]:
        lines.append(f"it reaches the gradient of `{start[1]}`")
    return EngineError("\n  ".join([fact, *lines]), f"{change}; {ALLOW}")


def _watched(
    share: RankProgram, batch: Mapping[str, torch.Tensor], held: Sequence[LocalTensor], run: Callable[[], None]
) -> Findings:
    """What this rank finds in a step that `run` runs."""
    if share.role is None:
        run()
        return Findings()
    world, runner = share.world, share.runner
    assert share.sites is not None
    watch = Watch(world, share.sites, f"role_{share.name}.py", lambda: runner.doing)
    for x, given in (*in_batch(share, batch), *in_weights(held, _trained(share)), *in_constants(share)):
        watch.mark(x, given)
    before = world.tracer, world.transport
    watched: Any = WatchedTransport(world.transport, watch)
    world.tracer, world.transport = watch, watched
    try:
        with watch, world.uncounted():
            run()
            gradients = dict(_gradients(watch, share))
    finally:
        world.tracer, world.transport = before
    losses = (watch.origin_of(loss) for _, loss in runner.losses)
    return watch.findings(next((number for number in losses if number is not None), None), gradients)


def _trained(share: RankProgram) -> frozenset[str]:
    """The names of the weights that this rank trains."""
    return frozenset(share.runner.weights.flat_of)


def _gradients(watch: Watch, share: RankProgram) -> Iterator[tuple[str, int]]:
    """The gradients that are not finite. All are dropped: there is no update."""
    for flat in share.runner.weights.flats:
        for name, gradient in flat.gradients().items():
            if gradient is not None and (number := watch.origin_of(gradient)) is not None:
                yield name, number
        flat.drop_gradients()


# -- in words ----------------------------------------------------------------------------------------------------------


def _told(findings: Sequence[Findings], source: OriginOnRank, since: str) -> tuple[list[str], str]:
    """Lines about an origin, and the change to make. Infinities that are not meant come before the NaN that an operator
    makes of them."""
    found, origin = findings[source.rank], findings[source.rank].origins[source.number]
    match origin:
        case Given():
            lines = [f"{origin.given}, on rank {source.rank}", *([since] if origin.is_trained else [])]
            if (read := found.read_by.get(source.number)) is not None:
                lines.append(f"first read by {read}")
            return lines, DATA if origin.is_batch else f"{GENTLER}, from a checkpoint of an earlier step"
        case Made():
            lines = _made(origin, source.rank)
            if origin.because is None:
                return lines, _change(origin)
            earlier = first_origin(findings, OriginOnRank(source.rank, origin.because))
            more, change = _told(findings, earlier, since)
            if _is_meant(findings[earlier.rank].origins[earlier.number]):
                return [*lines, "of infinities that may be meant:", *(f"  {line}" for line in more)], _change(origin)
            return [*more, *lines], change
        case Arrived():
            return [f"{origin.by} made the first {origin.kind}: a sum of numbers that are finite"], GENTLER
        case _:
            assert_never(origin)


def _made(origin: Made, rank: int) -> list[str]:
    phase = "backward" if origin.is_backward else "forward"
    first = f"{origin.operator} made the first {origin.kind}, in {phase}{at_text(origin.at)}, on rank {rank}"
    return [first, *([f"of operands in {origin.operands}"] if origin.operands else [])]


def _is_meant(origin: Origin) -> bool:
    """Whether infinities of this origin may be meant, as those of a mask."""
    match origin:
        case Given():
            return not origin.is_wrong
        case Made():
            return origin.is_meant
        case Arrived():
            return False
        case _:
            assert_never(origin)


def _change(origin: Made) -> str:
    if origin.is_backward:
        return f"keep its operands from where its derivative is infinite, as sqrt and norm at 0; {GENTLER}"
    return (
        f"keep its operands from where its result is not finite, as a division by 0 or exp of a large number; {GENTLER}"
    )
