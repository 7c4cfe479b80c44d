"""Kernels of parts against torch on the whole: parts of unequal sizes, ties, infinities, half precision."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ssdsl import runtime
from ssdsl.runtime.ranks.world import Group, World
from tests.model.parts import Lockstep

SIZES = (5, 1, 3)
SIZE = sum(SIZES)
STARTS = (0, 5, 6)


def parts(x: torch.Tensor, dim: int) -> list[torch.Tensor]:
    return [p.detach().clone().requires_grad_(x.requires_grad) for p in x.split(SIZES, dim)]


def together(run: Callable[[int, Group], Any]) -> list[Any]:
    """What each rank computes, in threads that meet in their collectives."""
    found: dict[int, Any] = {}
    meet = Lockstep(len(SIZES))

    def rank(at: int) -> None:
        try:
            found[at] = run(at, Group("g", tuple(range(len(SIZES))), at, meet, World(meet)))  # type: ignore[arg-type]
        except Exception as error:
            found[at] = error
            meet.barrier.abort()

    threads = [threading.Thread(target=rank, args=(at,)) for at in range(len(SIZES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in found.values():
        if isinstance(result, Exception):
            raise result
    return [found[at] for at in range(len(SIZES))]


def check(
    whole: torch.Tensor, expected: torch.Tensor, dim: int, run: Callable[[int, torch.Tensor, Group], torch.Tensor]
) -> None:
    """Compares results and gradients; a result that has the dimension is the ranks' parts joined."""
    upstream = torch.linspace(-1, 2, expected.numel(), dtype=expected.dtype).view(expected.shape)
    carries = expected.dim() == whole.dim() and expected.shape[dim] == SIZE
    (gradient,) = torch.autograd.grad(expected, whole, upstream)
    given = parts(whole, dim)

    def one(at: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        result = run(at, given[at], group)
        (mine,) = torch.autograd.grad(result, given[at], parts(upstream, dim)[at] if carries else upstream)
        return result.detach(), mine

    results, gradients = zip(*together(one), strict=True)
    for result in [torch.cat(results, dim)] if carries else results:
        torch.testing.assert_close(result, expected.detach(), equal_nan=True)
    torch.testing.assert_close(torch.cat(gradients, dim), gradient, equal_nan=True)


def scores(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return (2 * torch.randn(*shape, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_()


REDUCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "softmax": (lambda x, d: x.softmax(d), lambda x, d, s, g: runtime.softmax_parts(x, d, g)),
    "log_softmax": (lambda x, d: x.log_softmax(d), lambda x, d, s, g: runtime.log_softmax_parts(x, d, g)),
    "logsumexp": (lambda x, d: x.logsumexp(d), lambda x, d, s, g: runtime.logsumexp_parts(x, [d], False, g)),
    "logsumexp kept": (
        lambda x, d: x.logsumexp(d, keepdim=True),
        lambda x, d, s, g: runtime.logsumexp_parts(x, [d], True, g),
    ),
    "amax": (lambda x, d: x.amax(d), lambda x, d, s, g: runtime.amax_parts(x, [d], False, g)),
    "amin": (lambda x, d: x.amin(d, keepdim=True), lambda x, d, s, g: runtime.amin_parts(x, [d], True, g)),
    "max": (lambda x, d: x.max(d)[0], lambda x, d, s, g: runtime.max_parts(x, d, False, s, g)[0]),
    "min": (lambda x, d: x.min(d, keepdim=True)[0], lambda x, d, s, g: runtime.min_parts(x, d, True, s, g)[0]),
}
PLACES: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "argmax": (lambda x, d: x.argmax(d), lambda x, d, s, g: runtime.argmax_parts(x, d, False, s, g)),
    "argmin": (lambda x, d: x.argmin(d), lambda x, d, s, g: runtime.argmin_parts(x, d, False, s, g)),
}
LARGEST: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    f"{k} {'largest' if most else 'smallest'}": (
        lambda x, d, k=k, most=most: x.topk(k, d, most)[0],
        lambda x, d, s, g, k=k, most=most: runtime.topk_parts(x, k, d, most, s, g.index, g)[0],
    )
    for k, most in ((1, True), (3, True), (SIZE - 1, True), (4, False))
}
RUNNING: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "cumsum": (lambda x, d: x.cumsum(d), lambda x, d, g: runtime.cumsum_parts(x, d, g.index, g)),
    "cumprod": (lambda x, d: x.cumprod(d), lambda x, d, g: runtime.cumprod_parts(x, d, g.index, g)),
    "logcumsumexp": (lambda x, d: x.logcumsumexp(d), lambda x, d, g: runtime.logcumsumexp_parts(x, d, g.index, g)),
}


@pytest.mark.parametrize("shape", [(4, SIZE), (SIZE, 3), (2, SIZE, 3)], ids=str)
@pytest.mark.parametrize("name", RUNNING)
def test_running(name: str, shape: Sequence[int]) -> None:
    whole, part = RUNNING[name]
    x, dim = scores(*shape), list(shape).index(SIZE)
    check(x, whole(x, dim), dim, lambda at, mine, group: part(mine, dim, group))


@pytest.mark.parametrize("zeros", [[2], [5], [1, 7], [0, 5, 8], [1, 3]], ids=str)
def test_running_products_with_zeros(zeros: list[int]) -> None:
    """Before, in and behind a part; several in one part."""
    x = scores(2, SIZE).detach()
    x[0, zeros] = 0
    x.requires_grad_()
    check(x, x.cumprod(1), 1, lambda at, mine, group: runtime.cumprod_parts(mine, 1, at, group))


def test_running_sums_of_other_types() -> None:
    """Whole numbers are added up in 64 bits; numbers of half precision in float32, rounded once."""
    whole = torch.arange(2 * SIZE, dtype=torch.int32).view(2, SIZE)
    half = scores(2, SIZE, dtype=torch.bfloat16).detach()
    for x, options in ((whole, {}), (whole, {"dtype": torch.float64}), (whole > 3, {}), (half, {})):
        results = together(lambda at, g, x=x, o=options: runtime.cumsum_parts(parts(x, 1)[at], 1, at, g, **o))
        expected = x.cumsum(1, **options) if x is not half else x.float().cumsum(1).to(x.dtype)
        assert torch.equal(torch.cat(results, 1), expected) and results[0].dtype == expected.dtype


def test_the_largest_are_where_they_are_said_to_be() -> None:
    """Also where parts have fewer elements than are asked for, and elements that no other is worse than."""
    x = torch.stack([torch.randperm(SIZE, generator=torch.Generator().manual_seed(3)).double() for _ in range(4)])
    x[1, 1:] = -torch.inf
    x[2] = -torch.inf
    x[3, [0, 6]] = torch.nan
    for most in (True, False):
        for k in (1, 4, SIZE):
            expected = x.topk(k, 1, most)[0]
            run = lambda at, g, k=k, most=most: runtime.topk_parts(parts(x, 1)[at], k, 1, most, STARTS[at], at, g)  # noqa: E731
            for values, places in together(run):
                torch.testing.assert_close(values, expected, equal_nan=True)
                torch.testing.assert_close(x.gather(1, places), expected, equal_nan=True)
                assert all(len({*row}) == k for row in places.tolist())


@pytest.mark.parametrize("shape", [(4, SIZE), (SIZE, 3), (2, SIZE, 3)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS | LARGEST)
def test_reductions(name: str, shape: Sequence[int]) -> None:
    whole, part = (REDUCTIONS | LARGEST)[name]
    x, dim = scores(*shape), list(shape).index(SIZE)
    check(x, whole(x, dim), dim, lambda at, mine, group: part(mine, dim, STARTS[at], group))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows_with_infinities_and_ties(name: str) -> None:
    """A row that is minus infinity in one part, one that is everywhere, one with equal numbers in several parts."""
    whole, part = REDUCTIONS[name]
    x = scores(3, SIZE).detach()
    x[0, :5] = x[1] = -torch.inf
    x[2, [1, 4, 5, 8]] = 9.0
    x[2, [0, 7]] = -9.0
    x.requires_grad_()
    check(x, whole(x, 1), 1, lambda at, mine, group: part(mine, 1, STARTS[at], group))


def test_the_first_of_equals_is_found() -> None:
    x = torch.tensor([[0, 3, 1, 0, 3, 3, 1, 3, 0], [2, 1, 1, 1, 1, 0, 7, 0, 0], [0, 0, 0, 0, 0, 5, 0, 0, 5]])
    for name in ("argmax", "argmin"):
        function = getattr(runtime, f"{name}_parts")
        for found in together(lambda at, group, f=function: f(parts(x, 1)[at], 1, False, STARTS[at], group)):
            assert torch.equal(found, getattr(x, name)(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", *PLACES])
def test_numbers_that_are_none_and_zeros_of_both_signs(name: str, dtype: torch.dtype) -> None:
    """NaN of one part is the result on all, though a maximum over NCCL leaves it out."""
    x = torch.tensor([[7, -torch.inf, 3, 0, -2, 1, 5, torch.inf, 2], [-3, -4, -1, -9, -8, -7, -6, -5, -2]])
    numbers = [x.nan_to_num(0, 9, -9).to(dtype)] if not dtype.is_floating_point else [x, x.clone(), x.clone()]
    if dtype.is_floating_point:
        numbers[1][0, 5], numbers[2][0, 2], numbers[2][0, 7] = torch.nan, torch.nan, torch.nan
        zeros = torch.tensor([[-0.0, 0, -0.0, -0.0, -0.0, 0, -0.0, 0, 0]])
        numbers = [n.to(dtype) for n in (*numbers, -torch.tensor(torch.nan) * x, zeros, -zeros)]
    for given in numbers:
        whole, part = (REDUCTIONS | PLACES)[name]
        for found in together(lambda at, g, x=given, p=part: p(parts(x, 1)[at], 1, STARTS[at], g)):
            torch.testing.assert_close(found, whole(given, 1), equal_nan=True, rtol=0, atol=0)


def test_a_row_without_an_order_has_a_place() -> None:
    """Where the largest is no number, its place is one of the row's, so that nothing reads beyond it."""
    x = torch.full((2, SIZE), torch.nan)
    for found in together(lambda at, group: runtime.argmax_parts(parts(x, 1)[at], 1, False, STARTS[at], group)):
        assert ((found >= 0) & (found < SIZE)).all()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_half_precision_adds_up_in_float32(name: str) -> None:
    whole, part = REDUCTIONS[name]
    x = scores(64, SIZE, dtype=torch.bfloat16)
    found = together(lambda at, group: part(parts(x, 1)[at], 1, STARTS[at], group).detach())
    result = torch.cat(found, 1) if name != "logsumexp" else found[0]
    assert result.dtype is torch.bfloat16
    expected = whole(x.detach().double(), 1)
    torch.testing.assert_close(result.double(), expected, rtol=4e-3, atol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(7, SIZE), (2, SIZE, 4)], ids=str)
def test_cross_entropy(shape: tuple[int, ...], weighted: bool, smoothing: float, reduction: str) -> None:
    x = scores(*shape)
    labels = torch.arange(x.numel() // SIZE).view(shape[0], *shape[2:]) % SIZE
    labels[0] = 4
    weight = torch.linspace(0.5, 2, SIZE, dtype=x.dtype) if weighted else None
    weights = weight.split(SIZES) if weight is not None else [None] * len(SIZES)
    number = {"none": 0, "sum": 2}[reduction]
    for target in (labels, scores(*shape).detach().softmax(1)):
        ignored = 4 if target is labels else -100
        options: Any = {"reduction": reduction, "ignore_index": ignored, "label_smoothing": smoothing}
        expected = F.cross_entropy(x, target, weight, **options)
        targets = [labels] * len(SIZES) if target is labels else target.split(SIZES, 1)

        def part(at: int, mine: torch.Tensor, group: Group, targets=targets, ignored=ignored) -> torch.Tensor:
            return runtime.cross_entropy_parts(
                mine, targets[at], STARTS[at], SIZE, group, weights[at], number, ignored, smoothing
            )

        check(x, expected, 1, part)


def test_what_parts_pick_adds_up() -> None:
    x, index = torch.randn(4, SIZE), torch.tensor([[0, 5], [4, 8], [6, 6], [7, 1]])
    found = [runtime.gather_part(part, 1, index, start, SIZE) for part, start in zip(parts(x, 1), STARTS, strict=True)]
    assert torch.equal(sum(found), x.gather(1, index))
    labels, weight = torch.tensor([0, 5, 8, 3]), torch.rand(SIZE)
    found = [
        runtime.nll_part(part, labels, start, SIZE, w, 0, 3)
        for part, start, w in zip(parts(x, 1), STARTS, weight.split(SIZES), strict=True)
    ]
    torch.testing.assert_close(sum(found), F.nll_loss(x, labels, weight, reduction="none", ignore_index=3))


def test_what_no_part_has_is_refused_as_on_one_device() -> None:
    x, labels = torch.randn(2, 4), torch.tensor([1, SIZE])
    for call in (
        lambda: runtime.embedding_part(labels, torch.randn(4, 3), 0, SIZE),
        lambda: runtime.gather_part(x, 1, labels.view(2, 1), 0, SIZE),
        lambda: runtime.nll_part(x, labels, 0, SIZE),
    ):
        with pytest.raises(IndexError, match=f"1 to {SIZE} are given, out of range of the {SIZE}"):
            call()
    runtime.nll_part(x, labels, 0, SIZE, ignore_index=SIZE)
