"""A constructor that fails names the fields of its config that it had read."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ssdsl.model.load import load
from ssdsl.model.load.read_fields import read_fields
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render


class Embedding:
    def __init__(self, config: Any) -> None:
        self.width = config.width
        padding, self.other = config.pad_token_id, config.other  # both are read by one statement
        self.check(
            config.vocab_size,
            padding + self.width,
        )

    def check(self, size: int, padding: int) -> None:
        if padding >= size:
            raise ValueError("padding must be within size")


class Outer:
    def __init__(self, config: Any) -> None:
        self.embedding = Embedding(config)


class WithConfig:
    def __init__(self, config: Any) -> None:
        self.config = config
        self.fail()

    def fail(self) -> None:
        if getattr(self.config, "heads", 0) and self.config.is_checked:
            raise ValueError(f"{self.config.width} {getattr(self.config, 'heads', 3)}")


def without() -> None:
    raise ValueError("no config")


CONFIG = SimpleNamespace(
    width=8, pad_token_id=40, other=2, vocab_size=16, heads=3, is_checked=True, attribute_map={"other": "further"}
)
CONFIG.further = 5


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda: Outer(CONFIG), {"vocab_size": 16, "width": 8, "pad_token_id": 40, "further": 5}),
        (lambda: WithConfig(CONFIG), {"width": 8, "heads": 3}),
        (without, {}),
    ],
)
def test_numbers_that_the_failed_statement_reads(make: Callable[[], object], read: dict[str, int]) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert read_fields(caught.value) == read


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("hf:modernbert,vocab_size=512", ["vocab_size = 512", "pad_token_id = 50283"]),
        ("hf:bart,vocab_size=1", ["vocab_size = 1", "pad_token_id = 1"]),
        ("hf:gpt2,n_embd=10", ["n_embd = 10", "n_head = 12"]),
    ],
)
def test_a_message_of_transformers_that_names_no_number(spec: str, named: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        load(spec)
    (found,) = caught.value.diagnostics
    assert all(fact in found.text(found.note) for fact in named), render(found)
