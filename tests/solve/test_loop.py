"""Clocks of tasks that micro-batches repeat: several passes over the stages, tasks that all devices run together."""

import itertools
import random

import pytest

from ssdsl.solve.loop import Loop, LoopClock, Task, clock, run


def passes(stages: int, count: int, micro_batches: int, forward: float = 1, backward: float = 3) -> Loop:
    """So many forwards over the stages, then one backward (3F1B has three)."""
    way = [*range(stages)] * count
    tasks = [Task((s,), forward, (n - 1,) if n else ()) for n, s in enumerate(way)]
    for s in reversed(range(stages)):
        tasks.append(Task((s,), backward, (len(tasks) - 1,)))
    return Loop(tuple(tasks), micro_batches)


def interlaced() -> Loop:
    """nnScaler's T5: embedding and head on all four devices, stages on one each, at most 6, 5, 4, 3 in flight."""
    everywhere = Task((0, 1, 2, 3), 1)
    row = [everywhere, *(Task((s,), 1, takes=1) for s in range(4)), everywhere, everywhere]
    row += [*(Task((s,), 3, gives=1) for s in (3, 2, 1, 0)), everywhere]
    chain = (Task(t.devices, t.seconds, (n - 1,) if n else (), t.takes, t.gives) for n, t in enumerate(row))
    return Loop(tuple(chain), 6, memory=(6, 5, 4, 3))


def best(loop: Loop) -> LoopClock:
    *_, found = clock(loop)
    return found


@pytest.mark.parametrize(("stages", "micro_batches", "step"), [(4, 8, 60), (4, 16, 108), (8, 16, 124), (8, 64, 412)])
def test_3f1b(stages: int, micro_batches: int, step: float) -> None:
    loop = passes(stages, 3, micro_batches)
    assert best(loop).step_s == pytest.approx(step) and loop.least == pytest.approx(step)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize(("forward", "backward"), [(1, 3), (1, 2), (2, 3), (1, 4)])
def test_more_passes_reach_their_bound(count: int, forward: float, backward: float) -> None:
    loop = passes(4, count, 12, forward, backward)
    assert best(loop).step_s == pytest.approx(loop.least)


def test_interlaced_pipeline() -> None:
    loop = interlaced()
    assert best(loop).step_s == pytest.approx(60) and loop.least == pytest.approx(60)


def made_up(seed: int) -> Loop:
    rng = random.Random(seed)
    devices = rng.randint(1, 3)
    tasks: list[Task] = []
    for n in range(rng.randint(2, 4)):
        own = rng.sample(range(devices), rng.randint(1, devices) if rng.random() < 0.3 else 1)
        after = tuple(rng.sample(range(n), rng.randint(0, min(n, 2))))
        tasks.append(Task(tuple(own), rng.randint(1, 3), after))
    used = sorted({d for t in tasks for d in t.devices})
    tasks = [Task(tuple(used.index(d) for d in t.devices), t.seconds, t.after) for t in tasks]
    return Loop(tuple(tasks), 2, transfer=rng.choice([0.0, 0.5]))


def shortest(loop: Loop) -> float:
    """Of all orders of two micro-batches, each run as soon as it can."""
    every = [(o, m) for o in range(len(loop.tasks)) for m in range(loop.micro_batches)]
    found = float("inf")
    for order in itertools.permutations(every):
        ends: dict[tuple[int, int], float] = {}
        free = [0.0] * loop.devices
        for o, m in order:
            task = loop.tasks[o]
            if any((a, m) not in ends for a in task.after):
                break
            ready = [ends[a, m] + loop.travel(a, task) for a in task.after]
            ends[o, m] = max([*ready, *(free[d] for d in task.devices)]) + task.seconds
            for d in task.devices:
                free[d] = ends[o, m]
        else:
            found = min(found, max(free))
    return found


def test_no_order_is_below_the_bound() -> None:
    near = 0
    for seed in range(40):
        loop = made_up(seed)
        if len(loop.tasks) > 3:
            continue
        truth, found = shortest(loop), best(loop).step_s
        assert loop.least <= truth + 1e-9 and found >= truth - 1e-9, seed
        near += found <= truth * 1.1
    assert near >= 15


def test_what_does_not_fit_is_no_clock() -> None:
    tasks = (Task((0,), 1, takes=1), Task((0,), 1, (0,), gives=1))
    assert run(Loop(tasks, 4, memory=(1.0,)), (0, 1), 2) is not None
    assert run(Loop(tasks, 4, memory=(1.0,)), (0, 5), 2) is None
    assert run(Loop((Task((0,), 1), Task((0,), 1, (0,))), 2), (5, 0), 2) is None
