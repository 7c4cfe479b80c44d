"""The time of dropout beside PyTorch's, in one process: both generators, forward and backward, on one thread.

A round measures everything once, in turn; a ratio is the median of the ratios within each round.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table

from ssdsl.runtime.random.counter_rng import GENERATORS, step_keys
from ssdsl.runtime.random.distributions import attention_dropout, dropout

P = 0.1
SHAPE = (16, 512, 1024)
QUERIES = (4, 8, 256, 64)
Run = Callable[[], object]


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench dropout", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    table = Table(title=f"Dropout on {args.device}, {args.threads} thread(s)", box=box.SIMPLE_HEAD)
    for heading in ("what", "ns an element", "of PyTorch's"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, (elements, ways) in cases(device).items():
        times = race(ways, args.rounds, device)
        for way, taken in times.items():
            ratio = statistics.median(a / b for a, b in zip(taken, times["torch"], strict=True))
            table.add_row(f"{name}: {way}", f"{statistics.median(taken) / elements * 1e9:.2f}", f"{ratio:.2f}")
    Console().print(table)
    return 0


def race(ways: dict[str, Run], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """The seconds of each way in each round, behind one that does not count."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for way, run in ways.items():
            start = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize()
            if number:
                times[way].append(time.perf_counter() - start)
    return times


def cases(device: torch.device) -> dict[str, tuple[int, dict[str, Run]]]:
    """What is measured: the number of elements that are drawn, and the ways to do it."""
    key = step_keys(torch.tensor([0, 0], device=device), 1)[0]
    x = torch.randn(SHAPE, device=device, requires_grad=True)
    index = [torch.arange(n, device=device) for n in SHAPE]
    up = torch.ones_like(x)

    def backward(forward: Callable[[], torch.Tensor]) -> Run:
        return lambda: torch.autograd.grad(forward(), x, up)

    forwards = {"torch": lambda: F.dropout(x, P)} | {
        g: lambda g=g: dropout(x, P, key, index, SHAPE, g) for g in GENERATORS
    }
    q, k, v = (torch.randn(QUERIES, device=device) for _ in range(3))
    scores = (*QUERIES[:3], QUERIES[2])
    at = [torch.arange(n, device=device) for n in scores]
    settings = (None, P, True, None, False)
    attentions = {"torch": lambda: F.scaled_dot_product_attention(q, k, v, None, P, True)} | {
        g: lambda g=g: attention_dropout(q, k, v, *settings, key, at, scores, g) for g in GENERATORS
    }
    found: dict[str, tuple[int, dict[str, Run]]] = {
        "forward": (x.numel(), forwards),
        "forward and backward": (x.numel(), {n: backward(f) for n, f in forwards.items()}),
        "causal attention": (torch.Size(scores).numel(), attentions),
    }
    return found
