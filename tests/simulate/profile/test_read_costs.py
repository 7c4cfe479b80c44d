"""Files of costs: what they mean, what is said of wrong ones, and that a written one reads the same."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssdsl.ir.program import Update
from ssdsl.lang.save import FileMark, check_file
from ssdsl.simulate.exposed import ExposedPart
from ssdsl.simulate.profile import errors
from ssdsl.simulate.profile.measured import Measured, Times
from ssdsl.simulate.profile.read_costs import read_costs, write_costs
from ssdsl.text.diagnostic import REGISTRY, Diagnostic, PlanError
from ssdsl.text.render import render
from tests.simulate.steps import compiled, step

ERRORS = Path(__file__).parent.parent.parent / "errors"
MACHINE = '{"device": "a", "torch": "b", "threads": 1, "cores": 2, "processes": 1}'
WRONG = {
    "no JSON": "TF = 18.5\n",
    "not UTF-8": b'{"TF": "\xff"}',
    "a list": "[18.5, 18.1]",
    "a key misspelt": '{"Tcom": 0.6}',
    "a key of another file": '{"speed": 1}',
    "a unit": '{"unit": "minutes"}',
    "a unit that is a number": '{"unit": 1}',
    "a unit that is a list": '{"unit": ["ms"]}',
    "negative": '{"TF": -1}',
    "not a number": '{"TW": NaN}',
    "without end": '{"TW": 1e999}',
    "a text": '{"TB": "18.1"}',
    "a flag": '{"TB": true}',
    "a table": '{"tasks": [1.5]}',
    "in a table": '{"tasks": {"block0.fwd": null}}',
    "a run that is no text": '{"recorded": 1}',
    "a profile that is a number": '{"profile": 1}',
    "a profile of tomorrow": '{"profile": {"version": 3}}',
    "a profile without a machine": '{"profile": {"version": 1}}',
    "a machine without cores": f'{{"profile": {{"version": 1, "machine": {MACHINE.replace("2", "0")}}}}}',
    "a phase": f'{{"profile": {{"version": 1, "machine": {MACHINE}, "operators": {{"x": {{"fwd": 1}}}}}}}}',
    "a curve": f'{{"profile": {{"version": 1, "machine": {MACHINE}, "growing": {{"update": [[1, -1]]}}}}}}',
    "no pairs": f'{{"profile": {{"version": 1, "machine": {MACHINE}, "growing": {{"update": [1]}}}}}}',
    "a kind of communication": f'{{"profile": {{"version": 1, "machine": {MACHINE}, "network": {{"send": []}}}}}}',
}


def said(path: Path) -> tuple[Diagnostic, ...]:
    with pytest.raises(PlanError) as raised:
        read_costs(path)
    return raised.value.diagnostics


def test_wrong_files(golden: Callable[[Path, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    cases = {"no file": said(Path("cots.json")), "a folder": said(Path("folder.json"))}
    for name, text in WRONG.items():
        (tmp_path / "costs.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        cases[name] = said(Path("costs.json"))
    assert all([d.code for d in found] == ["E0651"] for found in cases.values())
    text = "\n\n".join(f"# {name}\n" + "\n\n".join(map(render, found)) for name, found in cases.items())
    assert "did you mean `Tcomm`?" in text
    golden(ERRORS / "E0651.err", text + "\n")


ABSURD = (
    *("[" * 100_000, '{"TF": 1' + "0" * 400 + "}", '{"TF": 1' + "0" * 9999 + "}", ""),
    f'{{"profile": {{"version": 1, "machine": {MACHINE}, "step": 1{"0" * 400}}}}}',
)


@pytest.mark.parametrize("text", ABSURD)
def test_absurd_files(text: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(text)
    assert [d.code for d in said(tmp_path / "costs.json")] == ["E0651"]


def test_each_has_a_case_and_an_explanation() -> None:
    own = [code for code, cls in REGISTRY.items() if cls.__module__ == errors.__name__]
    assert own[0] == "E0651" and all(REGISTRY[code].__doc__ and (ERRORS / f"{code}.err").exists() for code in own)


@pytest.mark.parametrize(("unit", "second"), [("s", 1.0), ("ms", 1e3), ("us", 1e6)])
def test_units(unit: str, second: float, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"unit": unit, "TF": 2 * second, "tasks": {"block0.fwd": second}}))
    found = read_costs(path).times
    assert found.forward == pytest.approx(2) and found.tasks == pytest.approx({"block0.fwd": 1})
    assert found.dgrad == found.transfer == 0


def test_without_a_unit_they_are_seconds(tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text('{"TB": 1}')
    assert read_costs(tmp_path / "costs.json").times == Times(dgrad=1.0)


seconds = st.floats(0, 1e6)
tables = st.dictionaries(st.text(max_size=8), seconds, max_size=3)


@given(st.builds(Times, seconds, seconds, seconds, seconds, tables, tables, tables, tables))
def test_what_is_written_reads_the_same(tmp_path_factory: pytest.TempPathFactory, times: Times) -> None:
    path = tmp_path_factory.mktemp("costs") / "costs.json"
    write_costs(str(path), times)
    check_file(str(path), FileMark.COSTS)  # another command may replace it
    found = read_costs(path).times
    for name in Times.__slots__:  # type: ignore[attr-defined]
        assert getattr(found, name) == pytest.approx(getattr(times, name), rel=1e-12, abs=1e-300)


def test_single_tasks_go_before_stages() -> None:
    """A stage's time is for what the plan orders; a function, a transfer, a role's end may have its own."""
    built = compiled("one_f_one_b", "models.py:chain_of_8", S=2, M=1)
    stages = Times(1.0, 1.0, 1.0, 0.25)
    assert step(built, stages).step_s == pytest.approx(2 * 3 + 2 * 0.25)
    slow = Times(1.0, 1.0, 1.0, 0.25, {"block0.fwd": 3.0}, {"0.fwd": 1.0}, {"gpus_pp0": 0.5}, {"gpus_pp0": 2.0})
    found = step(built, slow)
    assert Measured(built.program, slow).of(Update(), built.program.roles[1]).time_s == 0
    assert found.step_s == pytest.approx(3 + 1 + 3 + 0.25 + 2 + 0.5 + 2)
    assert dict(found.devices[0].exposed_parts)[ExposedPart.GRADIENTS] == pytest.approx(0.5)
    assert found.devices[0].optimizer_s == pytest.approx(2.0)


def test_times_of_version_1_are_those_of_ranks_that_share_cores(tmp_path: Path) -> None:
    """Four ranks on two cores took twice as long as with a core for each, except for communication."""
    machine = MACHINE.replace('"processes": 1', '"processes": 4')
    times = '"step": 4, "operators": {"x": {"forward": 6}}, "growing": {"update": [[8, 2]]}'
    times += ', "network": {"send among 2": [[8, 2]]}'
    path = tmp_path / "costs.json"
    found = {}
    for version in (1, 2):
        path.write_text(f'{{"profile": {{"version": {version}, "machine": {machine}, {times}}}}}')
        profile = read_costs(path).profile
        assert profile is not None
        found[version] = profile
    assert found[1] == found[2].faster(2.0)
    assert found[1].operators["x"]["forward"] == 3 and found[1].network == found[2].network
