"""A small model of transformers under its own tensor parallel plan, on two gloo processes, against one process."""

import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ssdsl.record import Record, replace

DEVICES = 2
ATTEMPTS = 3  # on a busy machine processes may not find each other
EQUAL = 2e-3  # the largest difference of equal gradients, as a part of the largest number of the right one
NOISE = 1e-7  # a gradient without a larger number is none


class Seen(Record):
    """What a run shows: the two losses, and of each weight whose gradient differs on some device, by how much: the
    largest difference, as a part of the largest number of the right gradient. `loaded` are the weights that have other
    numbers on two processes than on one, once they are loaded: the same in another order, if all else is equal, and if
    not the plan was run on weights that were cut `in_memory` instead. `failed` is how the run ended, if not."""

    loss: float = 0.0
    right_loss: float = 0.0
    differ: Mapping[str, float] = {}
    loaded: tuple[str, ...] = ()
    failed: str = ""
    in_memory: bool = False

    @property
    def is_equal(self) -> bool:
        return not (self.failed or self.differ) and self.is_loss_equal

    @property
    def is_loss_equal(self) -> bool:
        return abs(self.loss - self.right_loss) <= EQUAL * abs(self.right_loss)


def disturbed(module: Any) -> None:
    """Adds noise to all weights: where they are zero or one, wrong gradients could be equal to right ones."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).to(parameter.dtype) * 0.1)


def seen(
    cls: Any,
    folder: Path,
    batch: Mapping[str, torch.Tensor],
    plan: Mapping[str, str] | None,
    limit_s: float,
    *,
    in_memory: bool = False,
) -> Seen:
    """Runs the model saved in a folder on one process and on two, with `plan` in place of its own entries if given.

    The two load their parts of the weights, for which transformers needs `accelerate`, or with `in_memory` cut them
    once all are loaded.
    """
    right = _gradients(cls.from_pretrained(folder, dtype=torch.float32), batch)
    again = _gradients(cls.from_pretrained(folder, dtype=torch.float32), batch)
    if _compared(right, [again]).differ or again["loss"] != right["loss"]:
        return Seen(failed="one process does not compute the same twice")
    found = _run(right, cls, folder, batch, plan, limit_s, in_memory)
    if found.loaded and not in_memory and not (found.is_loss_equal and {*found.differ} <= {*found.loaded}):
        return replace(_run(right, cls, folder, batch, plan, limit_s, True), loaded=found.loaded, in_memory=True)
    return replace(found, differ={}) if found.loaded else found  # the same numbers in another order


def _run(
    right: Mapping[str, Any],
    cls: Any,
    folder: Path,
    batch: Mapping[str, torch.Tensor],
    plan: Mapping[str, str] | None,
    limit_s: float,
    in_memory: bool,
) -> Seen:
    """Runs the model on two processes, which load their parts of the weights, or cut what is `in_memory`; again if they
    do not find each other."""
    for _ in range(ATTEMPTS):
        inner = Path(tempfile.mkdtemp(dir=folder))
        found = _attempt(right, inner, partial(_rank, cls, folder, inner, batch, plan, in_memory), limit_s)
        if "Gloo" not in found.failed:
            break
    return found


def _attempt(right: Mapping[str, Any], inner: Path, body: Callable[[int], None], limit_s: float) -> Seen:
    """One run on two processes, which leave their results in the inner folder."""
    forks = [_fork(partial(body, rank)) for rank in range(DEVICES)]
    ends = _awaited(forks, limit_s)
    results = []
    for rank in range(DEVICES):
        path = inner / f"rank{rank}.pt"
        results.append(torch.load(path, weights_only=False) if path.exists() else {"failed": ends})
    failures = [found["failed"] for found in results if found.get("failed")]
    if failures:
        own = [text for text in failures if "Gloo" not in text and "Connection" not in text and "imed out" not in text]
        return Seen(failed=(own or failures)[0])
    return _compared(right, results)


def _compared(right: Mapping[str, Any], results: list[Mapping[str, Any]]) -> Seen:
    differ = dict[str, float]()
    for name, expected in right["grads"].items():
        if expected is None or expected.abs().max() < NOISE:
            continue
        worst = 0.0
        for found in results:
            got = found["grads"].get(name)
            if got is None or got.shape != expected.shape:
                worst = float("inf")
                continue
            worst = max(worst, float((got - expected).abs().max() / expected.abs().max()))
        if not worst <= EQUAL:
            differ[name] = worst
    losses = [found["loss"] for found in results]
    far = max(losses, key=lambda loss: abs(loss - right["loss"]))
    loaded = [name for name, weight in right["weights"].items() if not all(_is_same(weight, r, name) for r in results)]
    return Seen(far, right["loss"], differ, tuple(loaded))


def _is_same(weight: torch.Tensor, found: Mapping[str, Any], name: str) -> bool:
    other = found["weights"].get(name)
    return other is None or (other.shape == weight.shape and torch.allclose(other, weight, atol=1e-6, equal_nan=True))


def _gradients(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    model.eval()
    result = model(**batch)
    loss = getattr(result, "loss", None)
    loss = result[0].float().square().mean() if loss is None else loss
    loss.backward()
    named = dict(model.named_parameters())
    grads = {name: _whole(p.grad) for name, p in named.items()}
    return {"loss": loss.item(), "grads": grads, "weights": {name: _whole(p) for name, p in named.items()}}


def _whole(gradient: Any) -> torch.Tensor | None:
    if gradient is None:
        return None
    return (gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient).detach().clone()


def _rank(
    cls: Any,
    folder: Path,
    inner: Path,
    batch: Mapping[str, torch.Tensor],
    plan: Mapping[str, str] | None,
    in_memory: bool,
    rank: int,
) -> None:
    """One of the processes: leaves its loss, gradients and weights, or its failure, in the inner folder."""
    from datetime import timedelta

    from transformers.distributed import DistributedConfig

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(DEVICES)}
    found: dict[str, Any]
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{inner}/store", rank=rank, world_size=DEVICES, timeout=timedelta(seconds=40)
        )
        config = DistributedConfig(tp_size=DEVICES, **({} if plan is None else {"tp_plan": dict(plan)}))
        model = (
            distributed(cls, folder, config)
            if in_memory
            else cls.from_pretrained(folder, distributed_config=config, dtype=torch.float32)
        )
        found = _gradients(model, batch)
    except Exception as error:  # their code may raise anything
        lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
        found = {"failed": f"{type(error).__name__}: {lines[0][:300] if lines else ''}"}
    torch.save(found, inner / f"part{rank}.pt")
    (inner / f"part{rank}.pt").rename(inner / f"rank{rank}.pt")


def distributed(cls: Any, folder: Path, config: Any) -> Any:
    """The model with its plan, each process with its part of the weights: loaded whole, then cut in memory."""
    model = cls.from_pretrained(folder, dtype=torch.float32)
    config, _, mesh = cls.prepare_distribute_model(config)
    model = cls.maybe_distribute_model(model, config, mesh)
    model.tie_weights(recompute_mapping=False)
    return model


def _fork(work: Callable[[], None]) -> int:
    """A child process that does some work and ends."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def _awaited(children: list[int], limit_s: float) -> str:
    """Waits until all have ended; kills those that take longer. Returns how they ended."""
    end, open_, codes = time.monotonic() + limit_s, set(children), dict[int, int]()
    while open_ and time.monotonic() < end:
        for child in [*open_]:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                open_.discard(child)
                codes[child] = status
        time.sleep(0.02)
    for child in open_:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return f"no end after {limit_s:.0f} s" if open_ else f"a process died: {[*codes.values()]}"
