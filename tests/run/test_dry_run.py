"""A step of each role without a GPU: where the host waits for it, and programs that would fail or hang there."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ssdsl.record import replace
from ssdsl.run.dry import errors
from ssdsl.run.dry.device import DEVICE, DryDevice, DryEvent
from ssdsl.run.dry.dry_run import DryRole, dry_program, dry_run, dry_run_of
from ssdsl.run.dry.findings import END, findings, wrong
from ssdsl.run.in_process.alone import Alone
from ssdsl.runtime.ranks.numbers import on_device, read_rows
from ssdsl.runtime.ranks.world import World
from ssdsl.text.diagnostic import REGISTRY, Diagnostic
from ssdsl.text.render import render
from ssdsl.text.source import Source, Span
from ssdsl.workspace import Compiled
from tests.simulate.steps import compiled

GPT = "gpt:tiny"
ERRORS = Path(__file__).parent.parent / "errors"


def waits(roles: tuple[DryRole, ...]) -> dict[tuple[str, str], int]:
    """How often the host waits, by the reason and the place."""
    found: dict[tuple[str, str], int] = {}
    for finding, times in findings(roles).times:
        key = finding.event.value, finding.where
        found[key] = found.get(key, 0) + times
    return found


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    ("plan", "params"),
    [
        ("data_parallel", {"D": 2}),
        ("zero", {"D": 2, "Z": 3}),
        ("pipeline", {"S": 2, "M": 4}),
        ("megatron", {"S": 2, "T": 2}),
        ("terapipe", {}),
        ("zero_bubble", {}),
        ("context_parallel", {}),
    ],
)
def test_the_host_waits_for_the_loss_alone(plan: str, params: dict[str, int]) -> None:
    program = compiled(plan, GPT, **params)
    roles = dry_run(program.program)
    assert waits(roles) == {("waits", END): 1} and not wrong(roles, program.source)


def test_draws_need_no_wait() -> None:
    program = compiled("data_parallel", "gpt:tiny,layers=1,dropout=0.1", D=2)
    assert waits(dry_run(program.program)) == {("waits", END): 1}


def test_it_waits_for_numbers_of_rows_twice_a_routing() -> None:
    """Before the rows leave, and before they arrive; backward and the products of experts know the numbers by then."""
    program = compiled("experts", "mixtral:tiny", E=2)
    roles = dry_run(program.program)
    rows = "model.layers.*.mlp.experts dispatch"  # two layers
    expected = {("routes", rows): 2, ("routes", f"{rows} (communication)"): 2, ("waits", END): 1}
    assert waits(roles) == expected and not wrong(roles, program.source)


def test_it_waits_once_a_routing_where_no_row_travels() -> None:
    """All products of a layer's experts read the same numbers."""
    roles = dry_run(compiled("data_parallel", "mixtral:tiny", D=2).program)
    assert waits(roles) == {("routes", "model.layers.*.mlp.experts routed_mm"): 2, ("waits", END): 1}


# -- wrong programs ----------------------------------------------------------------------------------------------------


def spoilt(program: Compiled, old: str, new: str) -> list[Diagnostic]:
    """What is wrong with a program of which the first such line of each role is another."""
    dry = dry_program(program.program)
    roles = {name: re.sub(old, new, text, count=1, flags=re.MULTILINE) for name, text in dry.roles.items()}
    assert roles != dry.roles
    return wrong(dry_run_of(replace(dry, roles=roles)), program.source)


@pytest.fixture
def plan() -> Compiled:
    return compiled("data_parallel", "gpt:tiny,layers=2", D=2)


TANH = r"^( +)(\w+) = torch\.tanh\((\w+)\)$"  # of the activation of both layers


@pytest.mark.parametrize(
    ("new", "code", "operator"),
    [
        (r"\1\2 = torch.tanh(\3 + torch.arange(\3.shape[-1]))", "E0520", "add"),
        (r"\1\2 = torch.tanh(\3 if \3.sum() else \3)", "E0521", "item"),
        (r"\1\2 = torch.tanh(\3 * \3.flatten()[:2].tolist()[0])", "E0521", "to"),
        (r"\1\2 = torch.tanh(\3.masked_fill(\3 > \3[\3 > 0].sum(), 0))", "E0521", "index"),
        (r"\1\2 = torch.tanh(\3 + torch.tensor([1.0], device=\3.device))", "E0521", "tensor"),
        (r"\1\2 = torch.tanh(\3 + torch.ones(1).to(\3.device))", "E0521", "to"),
    ],
    ids=["a tensor of the host", "if", "tolist", "mask", "numbers", "a copy that blocks"],
)
def test_an_operator_that_no_gpu_runs_or_waits_for(plan: Compiled, new: str, code: str, operator: str) -> None:
    """It is named with its place, once for all layers."""
    (found,) = spoilt(plan, TANH, new)
    assert (
        found.code == code and getattr(found, "operator", "") == operator and getattr(found, "times", "") == "2 times"
    )
    assert "transformer.h.*.mlp.act tanh" in render(found) and "data_parallel.ssp:" in render(found)


def test_a_copy_that_does_not_block_is_right(plan: Compiled) -> None:
    assert not spoilt(plan, TANH, r"\1\2 = torch.tanh(\3 + torch.ones(1).to(\3.device, non_blocking=True))")


def test_an_operator_of_backward(plan: Compiled) -> None:
    """It has the line whose gradient it computes."""
    hook = r"\1\3.register_hook(lambda g: g * g.sum().item())" "\n" r"\1\2 = torch.tanh(\3)"
    (found,) = spoilt(plan, TANH, hook)
    assert found.code == "E0521" and "transformer.h.*.mlp" in render(found)


def test_a_collective_that_nobody_waits_for(plan: Compiled) -> None:
    (found,) = spoilt(plan, r"^    run\.wait_reduce\(.*$", "")
    assert found.code == "E0522" and "all_reduce over dp" in render(found) and "and 1 more" not in render(found)


def test_a_message_that_nobody_waits_for() -> None:
    """Its value is missing, where somebody reads it; a gradient is only left out."""
    program = compiled("pipeline", "gpt:tiny,layers=2", S=2, M=2)
    found = spoilt(program, r"^    run\.wait_gradient\(.*$", "")
    assert [d.code for d in found] == ["E0522"] and "receive of the gradient of" in render(found[0])


def test_an_operator_that_fails(plan: Compiled) -> None:
    (found,) = spoilt(plan, TANH, r"\1\2 = torch.tanh(\3.view(7, 7))")
    assert found.code == "E0523" and "`tanh`" in render(found) and "shape '[7, 7]' is invalid" in render(found)


# -- the device --------------------------------------------------------------------------------------------------------


@pytest.fixture
def device() -> Iterator[DryDevice]:
    transport: object = Alone(0)
    made = DryDevice(World(transport), "role_none.py", lambda: "a test")  # type: ignore[arg-type]
    with made.following():
        yield made


@pytest.mark.parametrize(
    ("run", "operator"),
    [
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x.bincount(), "bincount"),
        (lambda x: x.equal(x), "equal"),
        (lambda x: x.repeat_interleave(x), "repeat_interleave"),
        (lambda x: x[[0, 1]], "an index that is a list"),
        (lambda x: x.masked_select(x > 0), "masked_select"),
        (lambda x: x.index_put_((x > 0,), x[0]), "index_put_"),
        (lambda x: torch.zeros(3, dtype=torch.int64).copy_(x), "copy_"),
        (lambda x: x.copy_(torch.zeros(3)), "copy_"),
        (lambda x: x.new_tensor([1]), "new_tensor"),
    ],
)
def test_what_waits(device: DryDevice, run: Callable[[torch.Tensor], object], operator: str) -> None:
    run(torch.zeros(3, dtype=torch.int64, device=DEVICE))
    assert [(n.event, n.operator, times) for n, times in device.notes.items()] == [(DryEvent.WAITS, operator, 1)]


def test_what_does_not(device: DryDevice) -> None:
    x, host = torch.zeros(3, device=DEVICE), torch.tensor([1, 2])
    assert host.tolist() == [1, 2] and bool(host.any())
    x.repeat_interleave(torch.zeros(3, dtype=torch.int64, device=DEVICE), output_size=5)
    x[0] = 1.0
    x[:2].copy_(x[1:])
    (x * torch.tensor(2.0)).to(torch.float64)
    x[torch.zeros(2, dtype=torch.int64, device=DEVICE)].add_(on_device([1.0, 2.0], DEVICE))
    assert not device.notes


def test_numbers_of_rows_are_read_once(device: DryDevice) -> None:
    one, two = (torch.zeros(n, dtype=torch.int64, device=DEVICE) for n in (2, 3))
    assert read_rows(one) == [[1, 0]] and read_rows(one, two) == [[1, 0], [1, 0, 0]] == read_rows(one, two)
    assert {n.event: times for n, times in device.notes.items()} == {DryEvent.ROUTES: 2}


# -- texts -------------------------------------------------------------------------------------------------------------

PLAN = Source("p.ssp", "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n")
PLACE = "blocks.*.ffn mul\nnet.py:14"
SHOWN: tuple[Diagnostic, ...] = (
    errors.OperandsOnTwoDevices(Span(PLAN, 18, 46), "mul", "12 times", PLACE),
    errors.HostWaits(Span(PLAN, 18, 46), "item", "12 times", PLACE),
    errors.NeverAwaited(None, "gpus", "1 start", "all_reduce over dp (ranks 0, 1) for weight `fc.weight`"),
    errors.CannotRunDry(None, "gpus", "mine::scan: no fake kernel", "`scan` in module `blocks.0` (net.py:14)"),
)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda d: str(d.code))
def test_its_text(shown: Diagnostic, golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / f"{shown.code}.err", render(shown) + "\n")


def test_each_is_shown_and_explained() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == {d.code for d in SHOWN} and all(REGISTRY[code].__doc__ for code in own)
