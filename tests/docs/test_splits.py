"""The plans of docs/splits.md are the examples, its tables, those of bench/results/splits.md and its picture what the
compiler finds.

`--update-golden` writes them.
"""

import re
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.load import load_cluster
from ssdsl.compile import compile_plan, compile_source
from ssdsl.show.charts.gantt import gantt
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.report import Report
from ssdsl.simulate.simulate import simulate
from ssdsl.text.source import Source
from ssdsl.workspace import Compiled
from tests.captured import graph_of
from tests.docs.blocks import picture
from tests.docs.pages import with_text

ROOT = Path(__file__).parent.parent.parent
PAGE, RESULTS = ROOT / "docs" / "splits.md", ROOT / "bench" / "results" / "splits.md"
EXAMPLES = ("spatial", "tiles", "context_parallel", "terapipe", "splitbrain", "experts")
LARGE = "cosmoflow:512,batch=1"
BLOCKS = ((1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2), (4, 2, 2), (4, 4, 2), (4, 4, 4),
          (8, 1, 1), (16, 1, 1), (32, 1, 1))  # fmt: skip
TOKENS = "gpt:350m,seq=131072,batch=1,dtype=bf16"
WAYS = {
    "gathered, runs": {"C": 32, "ring": 0, "ends": 0},
    "gathered": {"C": 32, "ring": 0},
    "around a ring, runs": {"C": 32, "ends": 0},
    "around a ring": {"C": 32},
    "ring of 8, 4 devices for the heads": {"C": 8, "U": 4},
    "ring of 2, 16 devices for the heads": {"C": 2, "U": 16},
}
RINGS = ((1, 32, 1), (1, 8, 4), (2, 8, 2), (4, 2, 4), (8, 4, 1))
TILES = (1, 8, 16, 32, 64)
WORKERS, GROUPS, FLOAT = 32, (1, 2, 4, 8, 16, 32), 4
GIB = 2**30

Compile = Callable[..., Compiled]


@pytest.fixture(scope="module")
def compiled(graph_of: Callable[[str], Any]) -> Compile:
    """An example for a model; params by keyword."""
    return lambda plan, model, **params: compile_plan(ROOT / "examples" / f"{plan}.ssp", graph_of(model), params)


@pytest.fixture(scope="module")
def reports(compiled: Compile, tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    """A step of one sample in each number of blocks, on the page's cluster."""
    cluster = _cluster(tmp_path_factory.mktemp("cluster"))
    found = (compiled("spatial", LARGE, D=d, H=h, W=w) for d, h, w in BLOCKS)
    return [simulate(c.program, c.source, cluster) for c in found]


@pytest.mark.parametrize("name", ["interlaced", "ulysses"])
def test_combinations_are_plans_that_are_verified(name: str) -> None:
    found = re.search(rf"<!-- name: {name} -->\n<!--[^\n]*\n```ssp\n(.*?)```\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert found
    tested = (ROOT / "tests" / "verify" / "plans" / f"{name}.ssp").read_text("utf-8")
    assert _statements(found[1]) == _statements(tested)


@pytest.mark.slow
def test_page(compiled: Compile, reports: list[Report], golden: Callable[[Path, str], None]) -> None:
    text = PAGE.read_text("utf-8")
    for name in EXAMPLES:
        plan = (ROOT / "examples" / f"{name}.ssp").read_text("utf-8")
        text = re.sub(
            rf"(<!-- name: {name} -->\n(?:<!--[^\n]*\n)*```ssp\n).*?```\n", partial(_filled, plan), text, flags=re.S
        )
    golden(PAGE, with_text(text, "table: slices", _slices(compiled)))
    text = with_text(RESULTS.read_text("utf-8"), "table: scaling", _scaling(reports))
    golden(RESULTS, with_text(text, "table: groups", _groups(compiled)))


@pytest.mark.slow
def test_tokens(compiled: Compile, golden: Callable[[Path, str], None]) -> None:
    """A table of its own, as a long sequence takes a minute."""
    golden(PAGE, with_text(PAGE.read_text("utf-8"), "table: tokens", _tokens(compiled)))


@pytest.mark.slow
def test_rings(golden: Callable[[Path, str], None]) -> None:
    """The same for rings of several axes, and what a device gathers, scatters and merges beside them."""
    text = PAGE.read_text("utf-8")
    plan = re.search(r"<!-- name: rings.ssp -->\n<!--[^\n]*\n```ssp\n(.*?)```\n", text, re.DOTALL)
    assert plan
    source, graph, cluster = Source("rings.ssp", plan[1]), graph_of(TOKENS, meta=True), load_cluster("h100x1024")
    rows = ["| G x R x C | step ms | around rings GB | gathered and merged GB | peak GB |", "|---|---|---|---|---|"]
    weights = 0.0  # the gradients of weights, which are all that a ring of all devices sums
    for sizes in RINGS:
        found = compile_source(source, graph, dict(zip("GRC", sizes, strict=True)), ROOT)
        report = simulate(found.program, found.source, cluster)
        (device,) = report.devices
        around, others = (
            sum(t.size_bytes for t in report.traffic if (t.kind == "exchange") is is_ring) / len(device.ranks) / 1e9
            for is_ring in (True, False)
        )
        weights = weights or others
        cells = f"{report.step_s * 1e3:.0f} | {around:.2f} | {others - weights:.2f} | {device.peak_bytes / 1e9:.1f}"
        rows.append(f"| {' x '.join(map(str, sizes))} | {cells} |")
    golden(PAGE, with_text(text, "table: rings", "".join(f"{row}\n" for row in rows)))


@pytest.mark.slow
def test_tiles(golden: Callable[[Path, str], None], tmp_path: Path) -> None:
    """More tiles take less memory, with recomputation from few on."""
    spec = f"{_file('python', tmp_path)}:net"
    graph, laptop = graph_of(spec, meta=True), load_cluster("laptop")
    rows = ["| tiles | peak MB | layers computed again: peak MB |", "|---|---|---|"]
    found: list[list[int]] = []
    for tiles in TILES:
        plans = (compile_plan(ROOT / "examples" / "tiles.ssp", graph, {"D": 1, "T": tiles, "again": k}) for k in (0, 1))
        found.append([simulate(c.program, c.source, laptop).devices[0].peak_bytes for c in plans])
        rows.append(f"| {tiles} | {' | '.join(f'{n / 1e6:.0f}' for n in found[-1])} |")
    golden(RESULTS, with_text(RESULTS.read_text("utf-8"), "table: tiles", "".join(f"{row}\n" for row in rows)))
    once, again = zip(*found, strict=True)
    assert list(once[1:]) == sorted(once[1:], reverse=True) and list(again) == sorted(again, reverse=True)
    assert once[-1] < once[0] / 2 and again[-1] < again[0] / 4


def test_picture(compiled: Compile, golden: Callable[[Path, str], None]) -> None:
    golden(ROOT / "docs" / "spatial.svg", picture(compiled("spatial", "cosmoflow").program))


@pytest.mark.slow
def test_the_largest_volume_fits_only_when_it_is_split(reports: list[Report]) -> None:
    """The paper's 24.7 GiB of forward activations count the sample."""
    (one,), (two,) = (r.devices for r in reports[:2])
    parts = dict(one.peak_parts)
    assert (parts["inputs"] + parts["activations"]) / GIB == pytest.approx(24.65, abs=0.01)
    assert parts["inputs"] / GIB == pytest.approx(2, abs=0.01)
    assert one.capacity_bytes and two.capacity_bytes
    assert one.peak_bytes > one.capacity_bytes and two.peak_bytes < two.capacity_bytes


def test_workers_of_a_group_have_its_part_of_the_connected_layers(compiled: Compile) -> None:
    for model, convolved in (("vgg:16-cifar", 14_714_688), ("vgg:11-cifar", 9_220_480)):
        for group in GROUPS:
            whole = 4096 + 10  # biases behind a sum
            assert _parameters(compiled, model, group) == convolved + (18_923_530 - whole) // group + whole


def _statements(text: str) -> list[str]:
    """The lines without comments and empty ones."""
    return [line for line in (line.partition("#")[0].rstrip() for line in text.splitlines()) if line]


def _filled(plan: str, match: re.Match[str]) -> str:
    """The plan without lines of comments: the page says the same."""
    bare = re.sub(r"^#.*\n", "", plan, flags=re.M).lstrip("\n")
    return re.sub(r"\n{3,}", "\n\n", f"{match[1]}{bare}```\n")


def _cluster(folder: Path) -> Cluster:
    return load_cluster(str(_file("toml", folder)))


def _file(language: str, folder: Path) -> Path:
    """A file that the page shows."""
    found = re.search(rf"<!-- file: (\S+) -->\n```{language}\n(.*?)```", RESULTS.read_text("utf-8"), re.DOTALL)
    assert found
    (folder / found[1]).write_text(found[2])
    return folder / found[1]


def _scaling(reports: list[Report]) -> str:
    rows = [
        "| devices | D x H x W | step ms | speed-up | halo MB | inputs GB | activations GB | peak GB | of 15.7 GiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for blocks, report in zip(BLOCKS, reports, strict=True):
        (device,) = report.devices
        count, parts = len(device.ranks), dict(device.peak_parts)
        halo = sum(t.size_bytes for t in report.traffic if t.kind == "exchange") / count
        sizes = " | ".join(f"{n / 1e9:.2f}" for n in (parts["inputs"], parts["activations"], device.peak_bytes))
        times = f"{report.step_s * 1e3:.1f} | {reports[0].step_s / report.step_s:.1f}"
        assert device.capacity_bytes
        share = f"{device.peak_bytes / device.capacity_bytes:.0%}"
        rows.append(f"| {count} | {' x '.join(map(str, blocks))} | {times} | {halo / 1e6:.1f} | {sizes} | {share} |")
    return "".join(f"{row}\n" for row in rows)


def _tokens(compiled: Compile) -> str:
    """A long sequence in the ways to have keys and values."""
    rows = ["| keys and values | step ms | received GB | peak GB | of 79.1 GiB |", "|---|---|---|---|---|"]
    cluster = load_cluster("h100x1024")
    for words, params in WAYS.items():
        found = compiled("context_parallel", TOKENS, **params)
        report = simulate(found.program, found.source, cluster)
        (device,) = report.devices
        received = sum(t.size_bytes for t in report.traffic if t.kind in ("exchange", "all_to_all")) / len(device.ranks)
        assert device.capacity_bytes
        share = f"{device.peak_bytes / device.capacity_bytes:.0%}"
        rows.append(
            f"| {words} | {report.step_s * 1e3:.0f} | {received / 1e9:.2f} | {device.peak_bytes / 1e9:.1f} | {share} |"
        )
    return "".join(f"{row}\n" for row in rows)


def _slices(compiled: Compile) -> str:
    found = compiled("terapipe", "gpt:tiny", S=4, M=1, T=4)
    unit = Measured(found.program, Times(1.0, 1.0, 1.0))
    report = simulate(found.program, found.source, load_cluster("laptop"), unit)
    out = StringIO()
    Console(file=out, width=100, color_system=None).print(gantt(report.timeline, 100))
    lines = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    return f"```\n{lines}```\n"


def _parameters(compiled: Compile, model: str, group: int) -> int:
    program = compiled("splitbrain", model, N=WORKERS, G=group).program
    (role,) = program.roles
    return sum(p.elements for p in program.params_of(role))


def _groups(compiled: Compile) -> str:
    rows = ["| G | VGG-16: bytes | of G = 1 | VGG-11: bytes | of G = 1 |", "|---|---|---|---|---|"]
    sizes = {m: [FLOAT * _parameters(compiled, f"vgg:{m}-cifar", g) for g in GROUPS] for m in (16, 11)}
    for number, group in enumerate(GROUPS):
        cells = [f"{own[number]:,} | {own[number] / own[0]:.1%}" for own in sizes.values()]
        rows.append(f"| {group} | {' | '.join(cells)} |")
    return "".join(f"{row}\n" for row in rows)
