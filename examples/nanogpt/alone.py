"""The same training in plain PyTorch on one device: python alone.py

Only `Draws` is not plain: under it dropout takes the numbers that it takes under any plan, so that losses compare.
"""

import torch
from settings import Settings, parser, settings_of
from torch.utils.data import DataLoader

from ssdsl.runtime.random.single_device import Draws


def train(settings: Settings, model: torch.nn.Module, every: int | None = None) -> list[float]:
    """The loss of each step; `every` so many steps one is printed."""
    bare = [p for n, p in model.named_parameters() if n.endswith("bias") or "norm" in n]
    rest = [p for p in model.parameters() if all(p is not other for other in bare)]
    groups = [{"params": bare, "weight_decay": 0.0}, {"params": rest}]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.decay)
    schedule = settings.schedule(optimizer)
    losses = []
    for step, batch in enumerate(DataLoader(settings.data("train"), settings.batch)):
        optimizer.zero_grad()
        with Draws(settings.seed, step):
            _, loss = model(**batch)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if every and step % every == every - 1:
            print(f"step {step + 1}  loss {losses[-1]:.4f}", flush=True)
        if (step + 1) % settings.evaluate == 0 and every:
            print(f"step {step + 1}  valid {evaluate(settings, model):.4f}", flush=True)
    return losses


@torch.no_grad()
def evaluate(settings: Settings, model: torch.nn.Module) -> float:
    model.eval()
    losses = [model(**batch)[1].item() for batch in DataLoader(settings.data("valid"), settings.batch)]
    model.train()
    return sum(losses) / len(losses)


if __name__ == "__main__":
    settings = settings_of(parser().parse_args())
    train(settings, settings.model(), every=10)
