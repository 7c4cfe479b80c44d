"""What is said of a wrong cluster: each diagnostic with files that it meets, and its text as a golden."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.cluster import errors
from ssdsl.cluster.load import KNOWN, load_cluster
from ssdsl.text.diagnostic import REGISTRY, Diagnostic, PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source, Span

ERRORS = Path(__file__).parent.parent / "errors"
GOOD = """\
about = "two nodes"

[devices.big]
name = "Big"
peak_tflops = { float32 = 19.5 }
memory_gib = 79.1
memory_bandwidth_gb_s = 2039
compute_efficiency = 0.8
memory_efficiency = 0.9
launch_us = 4

[[nodes]]
device = "big"
count = 2
devices = 8
levels = [
    { name = "node", bandwidth_gb_s = 235, latency_us = 2 },
    { name = "cluster", bandwidth_gb_s = 22, latency_us = 4 },
]
"""
RACK = '{ name = "rack", devices = 12, bandwidth_gb_s = 22, latency_us = 4 },\n    { name = "cluster"'
SECOND = GOOD[GOOD.index("[[nodes]]") :]
WIDE = '\n[[levels]]\nname = "wide"\ndevices = 24\nbandwidth_gb_s = 1\nlatency_us = 9\n'
LAST = '\n[[levels]]\nname = "all"\nbandwidth_gb_s = 1\nlatency_us = 9\n'
# code: of each case, the words of the good file that are replaced, and by what
WRONG: dict[str, dict[str, tuple[str, str]]] = {
    "E0603": {
        "no quotation mark": ('"big"\ncount', '"big\ncount'),
        "no value": ("devices = 8", "devices ="),
        "not closed": ("},\n]", "},"),
        "twice": ("count = 2", "count = 2\ncount = 3"),
    },
    "E0604": {
        "misspelt": ("launch_us", "lunch_us"),
        "of a level": ("latency_us = 4", "latency_us = 4, latency = 3"),
        "of the file": ("about", 'author = "me"\nabout'),
        "a dtype": ("float32 = 19.5", "float32 = 19.5, bf16 = 312"),
    },
    "E0605": {
        "of a device": ("memory_gib = 79.1\n", ""),
        "of the file": ('about = "two nodes"\n', ""),
        "a table": (GOOD[GOOD.index("[[nodes]]") :], ""),
        "float32": ("float32 = 19.5", "bfloat16 = 312"),
        "of a level": (", latency_us = 4", ""),
        "devices of a middle level": ('{ name = "cluster"', RACK.replace("devices = 12, ", "")),
    },
    "E0606": {
        "a text": ("count = 2", 'count = "2"'),
        "a fraction": ("devices = 8", "devices = 8.0"),
        "no table": ("{ float32 = 19.5 }", "19.5"),
        "no array": ("[[nodes]]", "[nodes]"),
        "a flag": ("memory_gib = 79.1", "memory_gib = true"),
        "empty": (GOOD[GOOD.index("levels") :], "levels = []\n"),
        "a date": ("count = 2", "count = 2024-01-01 10:00:00  # when?"),
    },
    "E0607": {
        "negative": ("bandwidth_gb_s = 22,", "bandwidth_gb_s = -22,"),
        "beyond its peak": ("compute_efficiency = 0.8", "compute_efficiency = 80"),
        "none": ("count = 2", "count = 0"),
        "no number": ("launch_us = 4", "launch_us = nan"),
        "no name": ('"Big"', '""'),
        "400 digits of memory": ("memory_gib = 79.1", f"memory_gib = {10**400}"),
        "next to no bandwidth": ("bandwidth_gb_s = 22,", "bandwidth_gb_s = 1e-300,"),
        "a bandwidth without end": ("memory_bandwidth_gb_s = 2039", "memory_bandwidth_gb_s = inf"),
        "a peak beyond all": ("float32 = 19.5", "float32 = 1e30"),
        "next to no efficiency": ("memory_efficiency = 0.9", "memory_efficiency = 1e-9"),
        "a latency of years": ("latency_us = 4", "latency_us = 1e15"),
        "memory for nothing": ("memory_gib = 79.1", "memory_gib = 1e-200"),
    },
    "E0608": {"misspelt": ('"big"', '"bigg"'), "another": ('"big"', '"a100"')},
    "E0609": {
        "no multiple": ('{ name = "cluster"', RACK),
        "not all": ('"cluster",', '"cluster", devices = 8,'),
        "not the node": ('"node",', '"node", devices = 4,'),
        "one level for two nodes": ('    { name = "cluster", bandwidth_gb_s = 22, latency_us = 4 },\n', ""),
        "groups that nothing joins": (SECOND, SECOND + "\n" + SECOND),
        "one group joined": (SECOND, SECOND + LAST),
        "a level inside a group": (SECOND, SECOND + "\n" + SECOND + "\n" + SECOND + WIDE + LAST),
        "cores of two nodes": ("\n[devices", "shares_cores = true\n\n[devices"),
    },
}


def said(text: str, folder: Path) -> tuple[Diagnostic, ...]:
    (folder / "mine.toml").write_text(text, "utf-8")
    with pytest.raises(PlanError) as raised:
        load_cluster("./mine.toml")
    return raised.value.diagnostics


def shown(cases: dict[str, tuple[Diagnostic, ...]]) -> str:
    return "\n\n".join(f"# {name}\n" + "\n\n".join(map(render, found)) for name, found in cases.items()) + "\n"


def test_the_good_file_is_good(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD)
    cluster = load_cluster(str(tmp_path / "mine.toml"))
    assert (cluster.name, cluster.size, cluster.level((0, 8))) == ("mine", 16, "cluster")


@pytest.mark.parametrize("code", WRONG)
def test_its_text(
    code: str, golden: Callable[[Path, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = {}
    for name, (words, others) in WRONG[code].items():
        assert words in GOOD, name
        cases[name] = said(GOOD.replace(words, others, 1), tmp_path)
        assert {d.code for d in cases[name]} == {code}, name
        assert all(d.span is not None for d in cases[name]), name
    golden(ERRORS / f"{code}.err", shown(cases))


def test_names_and_files(golden: Callable[[Path, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(GOOD)
    (tmp_path / "latin.toml").write_bytes('about = "Größe"'.encode("latin-1"))
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 21))
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "plan.ssp").touch()
    wrong = {
        "E0601": {"misspelt": "h10x1024", "unknown": "summit", "one node": "h200x16", "another file": "plan.ssp"},
        "E0602": {
            "misspelt": "mien.toml",
            "a folder": "folder.toml",
            "not UTF-8": "latin.toml",
            "too large": "large.toml",
        },
    }
    for code, cases in wrong.items():
        found = {}
        for case, name in cases.items():
            with pytest.raises(PlanError) as raised:
                load_cluster(name)
            found[case] = raised.value.diagnostics
            assert [d.code for d in found[case]] == [code]
        golden(ERRORS / f"{code}.err", shown(found))


MESH = Source("p.ssp", "mesh gpus(dp = 64, tp = 8)\n")
TURNED = Source("p.ssp", "mesh gpus(tp = 8, dp = 4)\n")
OTHERS: tuple[Diagnostic, ...] = (
    errors.ClusterTooSmall(Span(MESH, 0, 26), 512, "two_sites", 64),
    errors.MeasureFailed(
        None, 1, "ended with status 1", "ModuleNotFoundError: No module named 'torch'", "run it again"
    ),
    errors.ClusterFileUnwritable(None, "/laptop.toml", "permission denied"),
    errors.AxisAcrossNodes(
        Span(TURNED, 0, 25),
        "tp",
        "v100x32",
        "ranks 0, 4, 8, 12, ... are on nodes 0, 1",
        "a node sends 15 GB a step for it, over links of 5.6 GB/s for each device: 168 ms, in which the device waits",
        "write `mesh gpus(dp = 4, tp = 8)`: the last axes lie inside a node; it then takes 31.7 ms",
    ),
)


@pytest.mark.parametrize("other", OTHERS, ids=lambda d: str(d.code))
def test_other_texts(other: Diagnostic, golden: Callable[[Path, str], None]) -> None:
    golden(ERRORS / f"{other.code}.err", render(other) + "\n")


def test_each_has_a_case_and_an_explanation() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__}
    assert own == {*WRONG, "E0601", "E0602", *(d.code for d in OTHERS)}
    assert all(REGISTRY[code].__doc__ for code in own)


def test_mistakes_are_said_together_and_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = GOOD.replace("= 0.8", "= 8").replace("count = 2", "cuont = 2").replace("memory_gib", "memory_gb")
    found = said(text, tmp_path)
    assert [d.code for d in found] == ["E0604", "E0607", "E0604"]


def test_places_of_every_way_to_write_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"\[devices.big\]\n", "", GOOD.split("[[nodes]]")[0], count=1)
    lines = [line if line.startswith("about") or not line else f'devices."big".{line}' for line in text.split("\n")]
    found = said("\n".join(lines).replace("launch_us = 4", "launch_us = -4") + "[[nodes]]" + SECOND[9:], tmp_path)
    assert [str(d.span) for d in found] == ["mine.toml:9:27"] and found[0].code == "E0607"


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "{a=" * 3000 + "1" + "}" * 3000, "a = 1" + "0" * 9999]
)
def test_absurd_files(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {d.code for d in said(text, tmp_path)} <= {"E0603", "E0604", "E0605"}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_crashes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([GOOD, (KNOWN / "two_sites.toml").read_text("utf-8")]))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = start + data.draw(st.integers(0, 20))
        text = (
            text[:start]
            + data.draw(st.sampled_from(["", '"', "[", "]]", "{", "= 1", "-", "0", "\n", "#", "1_0"]))
            + text[end:]
        )
    path = tmp_path_factory.mktemp("damage") / "mine.toml"
    path.write_text(text, "utf-8")
    try:
        load_cluster(str(path))
    except PlanError as error:
        assert all(map(render, error.diagnostics))
