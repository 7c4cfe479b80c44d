"""Configs of DeepSpeed become plans for any model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssdsl.compile import compile_source
from ssdsl.importers.deepspeed import read, recognises
from ssdsl.importers.foreign import Foreign
from ssdsl.importers.imported import Imported
from ssdsl.lang.format import format_script
from ssdsl.lang.parse import parse
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render
from ssdsl.text.source import Source
from tests.captured import graph_of

ERRORS = Path(__file__).parent.parent / "errors"
BATCH = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}


def config(**keys: Any) -> Foreign:
    return Foreign("ds.json", json.dumps(keys, indent=2), Path("ds.json"))


def lines(found: Imported) -> list[str]:
    return [line for line in found.text.split("\n") if line and not line.startswith(("#", "param", "use"))]


ZERO = [
    (0, []),
    (1, ["split model.optimizer by row into dp"]),
    (2, ["split model.grads by row into dp"]),
    (3, ["split model.weights by row into dp"]),
]


@pytest.mark.parametrize(("stage", "state"), ZERO)
def test_stages(stage: int, state: list[str]) -> None:
    found = read(config(**BATCH, zero_optimization={"stage": stage}))
    assert lines(found) == ["mesh gpus(dp = D)", "split model by batch into dp, m = M", *state, "assign model to gpus"]
    assert "param D = 4" in found.text and "param M = 2" in found.text and not found.refused


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"stage": 3, "offload_param": {"device": "cpu"}}, "assign model.weights to host"),
        ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, "assign model.optimizer to host"),
        ({"stage": 3, "mics_shard_size": 2}, "split model by batch into rep, dp, m = M"),
        ({"stage": 1}, "split model.optimizer by row into dp"),
    ],
)
@pytest.mark.parametrize("tensor", [1, 2])
def test_what_is_asked_for_is_proved(keys: dict[str, Any], wanted: str, tensor: int) -> None:
    found = read(config(**BATCH, zero_optimization=keys, tensor_parallel={"autotp_size": tensor}))
    assert wanted in lines(found) and not found.refused
    source = Source("plan.ssp", found.text)
    assert format_script(parse(source), source) == found.text
    compile_source(source, graph_of("gpt:tiny,batch=16,hidden=32,seq=16,vocab=64"), {}, None)


def test_every_key_is_in_one_list_with_its_line() -> None:
    source = config(
        **BATCH,
        zero_optimization={
            "stage": 2,
            "overlap_comm": True,
            "zero_quantized_gradients": True,
            "zero_hpz_partition_size": 1,
        },
        bf16={"enabled": "auto"},
        optimizer={"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
        elasticity={"enabled": False, "max_train_batch_size": 4},
        gradient_cliping=1.0,
    )
    found = read(source)
    written = [item.written.partition(":")[0] for item in found.items]
    assert len(written) == len({*written}) == 14
    for item in found.items:
        name = item.written.partition(":")[0].rpartition(".")[2]
        assert f'"{name}"' in source.text.split("\n")[item.line - 1]
    assert [item.written for item in found.refused] == [
        "zero_optimization.zero_quantized_gradients: true",
        "gradient_cliping: 1.0",
    ]
    assert "`gradient_clipping`" in found.refused[1].becomes


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage", "0 to 3"),
        ({"zero_optimization": {"stage": 1, "offload_param": {"device": "cpu"}}}, "zero_optimization.off", "too low"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "zero_optimization.off", "no disks"),
        ({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 4}, "train_batch_size", "do not divide it"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], key: str, said: str) -> None:
    (item,) = read(config(**keys)).refused
    assert item.written.startswith(key) and said in item.becomes


def test_recognises() -> None:
    assert recognises(config(zero_optimization={})) and not recognises(config(traceEvents=[]))
    assert not recognises(Foreign('{"zero_optimization": 1}', '{"zero_optimization": 1}'))


def test_no_json(golden: Callable[[Path, str], None]) -> None:
    texts = []
    for text in ('{\n  "train_batch_size": 4,\n}\n', '{"zero_optimization": {"stage": 1}\n'):
        with pytest.raises(PlanError) as raised:
            read(Foreign("ds.json", text, Path("ds.json")))
        texts.append(render(raised.value.diagnostics[0]) + "\n")
    golden(ERRORS / "E0730.err", "\n".join(texts))
