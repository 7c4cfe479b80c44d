"""Documents packed in one row: a token sees its own document alone, by a mask that the model makes of an input."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ssdsl.lang.shipped import plan_path
from ssdsl.model.load.from_module import model_of
from ssdsl.run.in_process.run_in_process import run_ranks
from ssdsl.run.rank0_compiler import Live
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from tests.train.conftest import CPU
from tests.train.test_lengths import PLANS, SAMPLES, SEQ, Text

ROWS = ("batch", "seq")
AXES = {"x": ROWS, "y": ROWS, "document": ROWS}


class Packed(Text):
    """Attention within a document."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, document: torch.Tensor) -> Any:  # type: ignore[override]
        batch, seq = x.shape
        at = torch.arange(seq)
        mask = (document[:, None, :, None] == document[:, None, None, :]) & (at[:, None] >= at)
        h = self.emb(x) + self.positions(at)
        q, k, v = (t.view(batch, seq, 2, 8).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        logits = self.head(h + self.down(F.gelu(self.up(h))))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=-100)


def packed(samples: int, seq: int) -> dict[str, torch.Tensor]:
    """Rows with documents of random lengths; the last token of each has no label."""
    draw = torch.Generator().manual_seed(100 * samples + seq)
    batch = {name: torch.randint(0, 32, (samples, seq), generator=draw) for name in ("x", "y")}
    begins = torch.rand(samples, seq, generator=draw) < 0.3
    batch["document"] = begins.cumsum(1)
    batch["y"][begins.roll(-1, 1)] = -100
    return batch


@pytest.mark.parametrize("plan", ("ring", "pipeline"))
def test_packed_documents_train_as_on_one_device(plan: str, tmp_path: Path) -> None:
    sizes = ((SAMPLES, SEQ), (SAMPLES, 11), (5, SEQ))
    source, params, count = PLANS[plan]
    if "\n" in source:
        (tmp_path / "plan.ssp").write_text(source)
        source = str(tmp_path / "plan.ssp")

    def made() -> Packed:
        torch.manual_seed(0)
        return Packed()

    def body(world: World, place: Any) -> list[float]:
        live = Live(plan_path(source), model_of(made(), packed(SAMPLES, SEQ), AXES), params, world.control)
        engine = Engine(live, world, CPU, background=False)
        engine.optimizer(torch.optim.SGD, lr=0.5)
        return [engine.step(packed(*one)) for one in sizes]

    module, expected = made(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for one in sizes:
        optimizer.zero_grad()
        loss = module(**packed(*one))
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    for losses in run_ranks(count, body):
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
