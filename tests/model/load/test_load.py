"""Loading a model: the zoo in its sizes, the user's own files, and a diagnostic for everything wrong with them."""

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest
import torch

import ssdsl.model.load.from_file
from ssdsl.model.load import load
from ssdsl.model.zoo import PARAMETERS, ZOO
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

ERRORS = Path(__file__).parent.parent.parent / "errors"
SIZES = [
    pytest.param(f"{name}:{size}", marks=[] if size in family.laptop else pytest.mark.slow)
    for name, family in ZOO.items()
    for size in family.sizes
]
GOOD = """\
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x, scale=None):
            return self.fc(x).mean()

    def model():
        return Net(), {"x": torch.randn(2, 4)}, {"x": ("batch", "feature")}
"""


@pytest.mark.thinned(9)
@pytest.mark.parametrize("spec", SIZES)
def test_zoo_has_the_parameters_that_its_table_claims(spec: str) -> None:
    name, size = spec.split(":")
    model = load(spec)
    assert sum(p.numel() for p in model.module.parameters()) == PARAMETERS[spec]
    assert model.is_meta == (size not in ZOO[name].laptop)
    assert len(model.batches) == 4
    for batch in model.batches:
        assert {n: t.dim() for n, t in batch.items()} == {n: len(axes) for n, axes in model.axes.items()}
    images = bool({"pixel_values", "volume", "image"} & set(model.axes))
    assert model.can_run or (images and model.is_meta)  # images of the papers are too large


@pytest.mark.parametrize("name", ZOO)
def test_zoo_trains_in_seconds_without_dropout(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    start, model = process_time(), load(name)
    first, second = (model.compute(model.batches[0]) for _ in range(2))
    first.backward()
    assert model.module.training and torch.equal(first, second)
    assert process_time() - start < 20
    assert capfd.readouterr() == ("", "")


def test_the_seed_draws_weights_and_batches() -> None:
    state = torch.random.get_rng_state()
    a, b, c = load("gpt", seed=1), load("gpt", seed=1), load("gpt", seed=2)
    weight = "transformer.h.0.mlp.c_fc.weight"
    assert torch.equal(a.module.get_parameter(weight), b.module.get_parameter(weight))
    assert not torch.equal(a.module.get_parameter(weight), c.module.get_parameter(weight))
    assert torch.equal(a.batches[1]["input_ids"], b.batches[1]["input_ids"])
    assert not torch.equal(a.batches[0]["input_ids"], a.batches[1]["input_ids"])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_size_can_be_changed() -> None:
    model = load("gpt:350m,layers=2,batch=4")
    assert model.is_meta and model.name == "gpt:350m,layers=2,batch=4"
    assert model.batches[0]["input_ids"].shape == (4, 2048)
    assert not any(".h.2." in name for name, _ in model.module.named_parameters())
    assert load("swin:depths=1-1-1,heads=2-4-8").module.config.num_heads == [2, 4, 8]  # type: ignore[union-attr]
    assert load("gpt:tiny", meta=True).is_meta and not load("gpt:350m,layers=1,hidden=64,vocab=8", meta=False).is_meta


FORMATS = {"bf16": torch.bfloat16, "float16": torch.float16, "fp32": torch.float32}


@pytest.mark.thinned(14)
@pytest.mark.parametrize("word", FORMATS)
@pytest.mark.parametrize("name", ZOO)
def test_all_weights_are_in_the_format_that_is_asked_for(name: str, word: str) -> None:
    dtype = FORMATS[word]
    for meta in (False, True):
        model = load(f"{name}:dtype={word}", meta=meta)
        assert {p.dtype for p in model.module.parameters()} == {dtype}
        assert {t.dtype for t in model.batches[0].values() if t.is_floating_point()} <= {dtype}
    assert model.module.state_dict().keys() == load(name, meta=True).module.state_dict().keys()


def test_attention_and_dropout_can_be_chosen() -> None:
    config: Any = load("gpt:attention=eager,dropout=0.1").module.config
    assert config._attn_implementation == "eager"
    assert config.attn_pdrop == config.embd_pdrop == config.resid_pdrop == 0.1
    config = load("gpt").module.config
    assert config._attn_implementation == "sdpa" and config.attn_pdrop == 0.0


def test_what_a_config_has_and_hf_takes_is_an_option_of_the_zoo_too() -> None:
    module: Any = load("gpt,resid_pdrop=0.1,n_layer=2,scale_attn_weights=false").module
    assert module.config.resid_pdrop == 0.1 and not module.config.scale_attn_weights and len(module.transformer.h) == 2
    assert load("gpt:tiny,autocast=bf16").autocast is torch.bfloat16
    assert load("gpt,task=token").axes["labels"] == ("batch", "seq")
    assert load("mbart:tiny,target=4").batches[0]["labels"].shape == (8, 4)
    assert load("t5:d_ff=48").module.config.d_ff == 48  # type: ignore[union-attr]


def user(folder: Path, text: str, function: str = "model") -> str:
    (folder / "mine.py").write_text(textwrap.dedent(text))
    return f"{os.path.relpath(folder / 'mine.py')}:{function}"


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    model = load(user(tmp_path, GOOD))
    assert model.axes == {"x": ("batch", "feature")} and model.module.training
    assert model.batches[0]["x"].shape == (2, 4)


def test_inputs_may_be_a_tuple_or_several_batches(tmp_path: Path) -> None:
    assert list(load(user(tmp_path, GOOD.replace('{"x": torch.randn(2, 4)}', "(torch.randn(2, 4),)"))).batches[0]) == [
        "x"
    ]
    several = GOOD.replace('{"x": torch.randn(2, 4)}', '[{"x": torch.randn(2, 4)} for _ in range(3)]')
    assert len(load(user(tmp_path, several)).batches) == 3


def test_it_may_import_files_beside_it_and_print(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside_mine.py").write_text("width = 4\n")
    load(user(tmp_path, "from beside_mine import width\nprint('width', width)\n" + textwrap.dedent(GOOD)))
    assert capsys.readouterr() == ("", "width 4\n")


def changed(old: str, new: str) -> Callable[[Path], str]:
    assert old in GOOD
    return lambda folder: user(folder, GOOD.replace(old, new))


RETURN = 'return Net(), {"x": torch.randn(2, 4)}, {"x": ("batch", "feature")}'
WRONG: dict[str, dict[str, Callable[[Path], str]]] = {
    "E0301": {"misspelt": lambda _: "gtp", "unknown": lambda _: "qwen2:7b", "two functions": lambda _: "a.py:net:x"},
    "E0302": {"misspelt": lambda _: "gpt:smal", "unknown": lambda _: "swin:9000b,window=2"},
    "E0303": {
        "misspelt": lambda _: "gpt:small,layer=2",
        "misspelt, of our own": lambda _: "resnet,depth=2",
        "misspelt, of a config": lambda _: "hf:llama,hiden_size=64",
        "misspelt, of the batch": lambda _: "hf:llama,sequence=8",
    },
    "E0304": {
        "heads": lambda _: "gpt:hidden=100,heads=3",
        "stages": lambda _: "swin:depths=2-2-2",
        "image": lambda _: "swin:image=63",
        "patches": lambda _: "vit:image=36",
        "halves": lambda _: "u_transformer:image=10",
        "planes": lambda _: "argus:resolution=10",
        "poolings": lambda _: "vgg:image=3",
        "widths": lambda _: "vgg:depths=1-1-1",
        "statistics": lambda _: "resnet:statistics=3",
        "voxels": lambda _: "unet3d:width=10",
        "a power of two": lambda _: "cosmoflow:width=24",
        "hidden layers": lambda _: "cosmoflow:hidden=64",
        "keys": lambda _: "llama:keys=3",
        "pairs": lambda _: "llama:hidden=60",
        "experts of a token": lambda _: "mixtral:top=5",
        "no mixture": lambda _: "moe_gpt:every=3",
        "heads of a config": lambda _: "hf:llama,hidden_size=100,num_attention_heads=3",
        "positions": lambda _: "hf:gpt2,n_positions=16,seq=32",
    },
    "E0316": {
        "no number": lambda _: "gpt:layers=many",
        "zero": lambda _: "gpt:layers=0",
        "no list": lambda _: "swin,depths=two",
        "format": lambda _: "gpt:dtype=fp8",
        "word": lambda _: "gpt:attention=flash",
        "probability": lambda _: "gpt:dropout=1.5",
        "no number of a config": lambda _: "hf:llama,hidden_size=many",
        "no value": lambda _: "hf:llama,hidden_size",
        "no share": lambda _: "hf:llama,attention_dropout=no",
        "no truth": lambda _: "hf:llama,use_cache=maybe",
        "no list of a config": lambda _: "hf:swin,depths=two",
        "a dictionary": lambda _: "hf:llama,rope_parameters=3",
        "no size of the batch": lambda _: "hf:llama,batch=0",
        "no format": lambda _: "hf:llama,dtype=fp8",
        "no task": lambda _: "hf:llama,task=translation",
        "a field of the zoo's": lambda _: "gpt,scale_attn_weights=maybe",
    },
    "E0306": {"missing": lambda _: "none.py:model", "a folder": lambda _: "../folder/:model"},
    "E0307": {
        "misspelt": lambda folder: user(folder, GOOD, "modle"),
        "none given": lambda folder: user(folder, GOOD).removesuffix(":model"),
        "none given, beside helpers": lambda folder: user(
            folder, "def _hidden(): ...\ndef helper(x): ...\n" + textwrap.dedent(GOOD)
        ).removesuffix(":model"),
        "none defined": lambda folder: user(folder, "x = 3\n"),
    },
    "E0308": {
        "raises": changed("return Net(),", "return Nett(),"),
        "inside torch": changed("torch.nn.Linear(4, 4)", "torch.nn.Linear(4, -4)"),
        "syntax": changed("def model():", "def model()"),
        "import": changed("import torch\n", "import torch, no_such_module\n"),
        "exits": lambda folder: user(folder, "import sys\nsys.exit('cannot go on')\n"),
    },
    "E0309": {
        "one thing": changed(RETURN, "return Net()"),
        "five things": changed(RETURN, "return Net(), {}, {}, 0, 0"),
        "nothing": changed(RETURN, "pass"),
        "a class": changed("return Net()", "return Net"),
        "where the loss is": changed(RETURN, RETURN + ", 0.5"),
        "arguments": changed("def model():", "def model(width):"),
        "a lazy module": changed("torch.nn.Linear(4, 4)", "torch.nn.LazyLinear(4)"),
    },
    "E0310": {
        "misspelt": changed('{"x": torch', '{"scal": torch'),
        "no tensor": changed('"x": torch.randn(2, 4)', '"x": [1, 2]'),
        "a list": changed('{"x": torch.randn(2, 4)}', "[]"),
        "no inputs": changed('{"x": torch.randn(2, 4)}', "{}"),
        "no samples": changed("torch.randn(2, 4)", "torch.randn(0, 4)"),
        "too many": changed('{"x": torch.randn(2, 4)}', "(1, 2, 3)"),
        "unlike": changed('{"x": torch.randn(2, 4)}', '[{"x": torch.randn(n, 4)} for n in (2, 3)]'),
    },
    "E0311": {
        "rank": changed('("batch", "feature")', '("batch",)'),
        "no input": changed('{"x": ("batch", "feature")}', '{"x": ("batch", "feature"), "y": ("batch",)}'),
        "a string": changed('("batch", "feature")', '"batch"'),
        "one size": changed('("batch", "feature")', '("batch", "batch")'),
        "no dictionary": changed('{"x": ("batch", "feature")}', '("batch", "feature")'),
    },
}


@pytest.mark.parametrize("code", WRONG)
def test_what_is_wrong_is_said(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    texts = []
    for case, make in WRONG[code].items():
        folder = tmp_path / str(len(texts)) / "folder"
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        with pytest.raises(PlanError) as caught:
            load(make(folder))
        assert code in {d.code for d in caught.value.diagnostics}
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
    golden(ERRORS / f"{code}.err", "\n".join(texts))


@pytest.mark.parametrize("where", ["at import", "in the function"])
@pytest.mark.parametrize("raised", ["raise ImportError('no array') from error", "raise SystemExit(1)", "raise"])
def test_an_interruption_is_no_mistake_of_the_model(where: str, raised: str, tmp_path: Path) -> None:
    """Also where a module, as some in C, makes another error of it."""
    text = f"try:\n    raise KeyboardInterrupt\nexcept BaseException as error:\n    {raised}\n"
    if where == "in the function":
        text = f"def model():\n{textwrap.indent(text, '    ')}"
    with pytest.raises(KeyboardInterrupt):
        load(user(tmp_path, text))


def test_a_constructor_that_reads_large_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    """Without the numbers it cannot; of small ones it may, and with the numbers too."""
    monkeypatch.chdir(tmp_path)
    texts = []
    for case, reads in {"a number": ".max().item()", "which": ".nonzero()"}.items():
        line = f"read = torch.randn(256, 256){reads}"
        spec = user(tmp_path, GOOD.replace("return Net()", f"{line}\n        return Net()"))
        load(spec)
        with pytest.raises(PlanError) as caught:
            load(spec, meta=True)
        texts += [f"# {case}", *map(render, caught.value.diagnostics), ""]
        (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text().replace("256, 256", "64, 64"))
        load(spec, meta=True)
    golden(ERRORS / "E0365.err", "\n".join(texts))


LARGE = """
import torch

class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()

def net():
    return Net(200, 100), {"x": torch.randn(2, 200)}, {"x": ("batch", "in")}

def reads():
    made = Net(200, 100)
    made.scale = made.weight.max().item()
    return made, {"x": torch.randn(2, 200)}, {"x": ("batch", "in")}
"""


def test_a_large_model_that_does_not_train_is_built_without_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LARGE)
    assert not load("mine.py:net", trains=False).is_meta
    monkeypatch.setattr(ssdsl.model.load.from_file, "MOST", 10_000)
    assert not load("mine.py:net").is_meta
    model = load("mine.py:net", trains=False)
    assert model.is_meta and model.recipes is not None and not model.batches[0]["x"].is_meta and not model.remarks
    model = load("mine.py:reads", trains=False)
    assert not model.is_meta
    golden(ERRORS / "E0348.err", "\n".join(map(render, model.remarks)) + "\n")


def test_without_transformers(monkeypatch: pytest.MonkeyPatch, golden: Callable[[Path, str], None]) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(PlanError) as caught:
        load("gpt")
    (found,) = caught.value.diagnostics
    assert found.text(found.help) == "pip install 'ssdsl[models]'"
    golden(ERRORS / f"{found.code}.err", render(found) + "\n")
