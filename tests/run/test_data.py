"""`--data file.py:function`: what is wrong with it is said before anything starts; what is right trains."""

import json
import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.data import default_collate

from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run import data_errors
from ssdsl.run.data import check_data, check_eval_data
from ssdsl.runtime.data.sample_order import SampleOrder
from ssdsl.runtime.data.user_data import CalledEachEpoch, load_data, loader_arguments
from ssdsl.text.diagnostic import REGISTRY, PlanError
from ssdsl.text.render import render
from tests.cli.commands import Done, call

ROOT = Path(__file__).parents[2]
ERRORS = ROOT / "tests/errors"
GOOD = """\
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    class Words(Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, i):
            return torch.full((4,), float(i)), i

    class Flow(IterableDataset):
        def __iter__(self):
            return iter([Words()[i] for i in range(32)])

    def data():
        return Words()

    def flow():
        return Flow()

    def loader():
        return DataLoader(Words(), 8, num_workers=1)

    def batches():
        for _ in range(3):
            yield {"x": torch.zeros(8, 4), "y": torch.zeros(8, dtype=torch.int64)}

    def listed():
        return list(batches())

    class Few(Words):
        def __len__(self):
            return 21

    def few():
        return Few()

    def few_loaded():
        return DataLoader(Few(), 8, shuffle=True)

    def few_dropped():
        return DataLoader(Few(), 8, drop_last=True)
"""


def model() -> Model:
    example = {"x": torch.zeros(8, 4), "y": torch.zeros(8, dtype=torch.int64)}
    return Model("net.py:net", torch.nn.Linear(4, 4), (example,), {"x": ("batch", "width"), "y": ("batch",)})


def written(folder: Path, text: str, function: str = "data") -> str:
    (folder / "mine.py").write_text(textwrap.dedent(text))
    return f"{os.path.relpath(folder / 'mine.py')}:{function}"


@pytest.mark.parametrize("function", ("data", "flow", "loader", "batches", "listed"))
def test_data_of_each_kind(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_data(written(tmp_path, GOOD, function), model()) == f"{tmp_path / 'mine.py'}:{function}"


@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
def test_numbers_of_another_precision_are_cast(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = GOOD.replace("float(i))", f"float(i), dtype=torch.{dtype})")
    check_data(written(tmp_path, text), replace(model(), precision="bf16"))


def test_a_generator_begins_anew_for_every_epoch(tmp_path: Path) -> None:
    data = load_data(f"{Path(written(tmp_path, GOOD).rpartition(':')[0]).resolve()}:batches")
    assert isinstance(data, CalledEachEpoch) and [len(list(data)) for _ in range(2)] == [3, 3]


def changed(old: str, new: str, function: str = "data") -> Callable[[Path], str]:
    assert old in GOOD
    return lambda folder: written(folder, GOOD.replace(old, new), function)


WRONG: dict[str, dict[str, Callable[[Path], str]]] = {
    "E0550": {"missing": lambda _: "none.py:data"},
    "E0551": {"misspelt": lambda folder: written(folder, GOOD, "dat"), "none": lambda f: written(f, GOOD)[:-5]},
    "E0552": {
        "raises": changed("return Words()", "return Wordz()"),
        "import": changed("import torch\n", "import torch, no_such_module\n"),
    },
    "E0553": {
        "nothing": changed("return Words()", "Words()"),
        "a dictionary": changed("return Words()", 'return {"x": 3}'),
        "arguments": changed("def data():", "def data(folder):"),
    },
    "E0554": {
        "shape": changed("(4,)", "(5,)"),
        "dtype": changed("float(i)", "i"),
        "names": changed("return torch.full((4,), float(i)), i", 'return {"x": torch.zeros(4), "z": 3}'),
        "too few": changed("return 32", "return 5"),
        "batch size": changed("DataLoader(Words(), 8", "DataLoader(Words(), 4", "loader"),
        "raises": changed("return torch.full", "return torch.fulll"),
        "a generator": changed('"x": torch.zeros(8, 4)', '"x": torch.zeros(8, 3)', "batches"),
    },
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_is_said(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    texts = []
    for case, make in WRONG[code].items():
        folder = tmp_path / str(len(texts))
        folder.mkdir()
        monkeypatch.chdir(folder)
        with pytest.raises(PlanError) as caught:
            check_data(make(folder), model())
        assert code in {d.code for d in caught.value.diagnostics}
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / f"{code}.err", "\n".join(texts).replace(str(tmp_path), "/path"))


@pytest.mark.parametrize("function", ("few", "few_loaded"))
def test_samples_that_are_not_evaluated_are_told(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    found, warnings = check_eval_data(written(tmp_path, GOOD, function), model())
    assert found == f"{tmp_path / 'mine.py'}:{function}" and [d.code for d in warnings] == ["E0556"]
    if function == "few":
        golden(ERRORS / "E0556.err", render(warnings[0]))


@pytest.mark.parametrize("function", ("data", "flow", "loader", "few_dropped", "batches"))
def test_where_all_samples_are_evaluated_nothing_is_told(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_eval_data(written(tmp_path, GOOD, function), model())[1] == ()


def test_evaluation_takes_samples_in_their_order(tmp_path: Path) -> None:
    data = load_data(f"{Path(written(tmp_path, GOOD, 'few').rpartition(':')[0]).resolve()}:few")
    assert [loader_arguments(data, 8, evaluate)["shuffle"] for evaluate in (False, True)] == [True, False]


def test_the_place_of_an_imported_function_is_in_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, GOOD)
    (tmp_path / "all.py").write_text("from mine import few\n")
    _, (warning,) = check_eval_data("all.py:few", model())
    place = warning.span
    assert place is not None
    assert (place.source.name, place.source.text[place.start : place.end]) == ("mine.py", "def few():")


def test_each_is_explained() -> None:
    own = {code for code, cls in REGISTRY.items() if cls.__module__ == data_errors.__name__}
    assert own == {*WRONG, "E0555", "E0556"} and all(REGISTRY[code].__doc__ for code in own)


NET = """\
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 32)

        def forward(self, x, y):
            return torch.nn.functional.cross_entropy(self.fc(x), y)

    def net():
        batch = {"x": torch.zeros(8, 4), "y": torch.zeros(8, dtype=torch.int64)}
        return Net(), batch, {"x": ("batch", "width"), "y": ("batch",)}
"""
SPLIT = "mesh gpus(dp = 2)\nsplit model by batch into dp\nassign model to gpus\n"


def ssdsl(folder: Path, data: str) -> Done:
    (folder / "net.py").write_text(textwrap.dedent(NET))
    (folder / "p.ssp").write_text(SPLIT)
    words = ["run", "p.ssp", "--model", "net.py:net", "--data", data, "--steps", "5", "--out", "out"]
    return call(*words, folder=folder)


def test_a_run_on_data_of_ones_own(tmp_path: Path) -> None:
    """It trains on the batches of a single device, shuffled, epoch after epoch."""
    done = ssdsl(tmp_path, written(tmp_path, GOOD).replace(os.path.relpath(tmp_path), "."))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "out/results/metrics.jsonl").read_text().splitlines()]
    weights = torch.load(tmp_path / "out/program/weights.pt", weights_only=True)
    net = torch.nn.Linear(4, 32)
    net.load_state_dict({"weight": weights["fc.weight"], "bias": weights["fc.bias"]})
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    data = load_data(f"{tmp_path / 'mine.py'}:data")
    order = SampleOrder(32, 8, True, True)
    keys = [batch for epoch in range(2) for batch in order.batches(0, epoch)][:5]
    for line, batch in zip(lines, keys, strict=True):
        x, y = default_collate([data[key] for key in batch])
        loss = torch.nn.functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert line["loss"] == pytest.approx(loss.item(), rel=1e-5) and line["samples_per_s"] > 0


@pytest.mark.slow
def test_workers_start_as_in_any_script(tmp_path: Path) -> None:
    """Though the ranks are copies of a process: what cannot be imported or pickled need not be."""
    local = (
        "DataLoader(Words(), 8, num_workers=1, collate_fn=lambda samples: torch.utils.data.default_collate(samples))"
    )
    data = GOOD.replace("return Words()\n", f"return {local}\n", 1)
    done = ssdsl(tmp_path, written(tmp_path, data).replace(os.path.relpath(tmp_path), "."))
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_shows_only_in_training_is_said_by_all(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    bad = GOOD.replace(
        "return Words()\n", "return DataLoader(Words(), 8, sampler=range(31, -1, -1), collate_fn=large)\n", 1
    )
    bad += """
    def large(samples):
        assert max(y for _, y in samples) > 7, "all are small"
        return torch.utils.data.default_collate(samples)
"""
    done = ssdsl(tmp_path, written(tmp_path, bad).replace(os.path.relpath(tmp_path), "."))
    assert done.returncode == 1
    golden(ERRORS / "E0555.err", done.stderr.replace(str(tmp_path), "/path"))
