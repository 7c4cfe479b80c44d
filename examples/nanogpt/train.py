"""Trains a GPT as a plan says: torchrun --nproc-per-node=2 train.py --plan data_parallel --out runs/a

The loop is the user's own. Started again with the same folder, it goes on where the last checkpoint was saved.
"""

from pathlib import Path

import torch
from average import Average
from settings import parser, settings_of

import ssdsl
from ssdsl.runtime.train.log import Log, Work


def main() -> None:
    options = parser()
    options.add_argument("--plan", default="data_parallel", help="a file, or a plan that comes with ssdsl")
    options.add_argument("--set", action="append", default=[], metavar="NAME=N", help="a parameter of the plan")
    options.add_argument("--precision", choices=("bf16", "fp16"), help="of everything but the master weights")
    options.add_argument("--accumulate", type=int, default=1, help="batches for each step of the optimizer")
    options.add_argument("--ema", type=float, help="evaluate with an average of the weights, as 0.99")
    options.add_argument("--save", type=int, default=100, help="every so many steps")
    options.add_argument("--stop", type=int, help="leave at this step, as if the run had been ended there")
    options.add_argument("--workers", type=int, default=0, help="processes that load data")
    options.add_argument("--out", type=Path, default=Path("runs/nanogpt"), help="checkpoints and metrics.jsonl")
    given = options.parse_args()
    settings = settings_of(given)

    engine = ssdsl.engine(
        given.plan,
        settings.model(),
        settings.example(),
        axes={"x": ("batch", "seq"), "y": ("batch", "seq")},
        params={name: int(number) for name, _, number in (each.partition("=") for each in given.set)},
        precision=given.precision,
        seed=settings.seed,
    )
    engine.optimizer(
        torch.optim.AdamW,
        lr=settings.lr,
        betas=(0.9, 0.95),
        weight_decay=settings.decay,
        groups={"*.bias|*norm*": {"weight_decay": 0.0}},
    )
    schedule = settings.schedule(engine.optim)
    loader = engine.loader(settings.data("train"), settings.batch)
    valid = engine.loader(settings.data("valid"), settings.batch, evaluate=True)
    engine.resume(given.out)
    average = Average(engine, given.ema) if given.ema else None
    log = Log(given.out, Work.of(engine.table), first=engine.steps, writes=engine.rank == 0)

    for batch in loader.epochs():
        if engine.steps >= (given.stop or settings.steps):
            break
        last = (engine.micro_steps + 1) % given.accumulate == 0
        loss = engine.step(batch, clip=settings.clip, update=last, scale=1 / given.accumulate)
        if not last:
            continue
        said = {"lr": schedule.get_last_lr()[0], "grad_norm": engine.grad_norm}
        schedule.step()
        if average is not None:
            average.update()
        if engine.steps % settings.evaluate == 0:
            said["valid"] = engine.evaluate(valid)
            if average is not None:
                with average.in_place():
                    said["valid_ema"] = engine.evaluate(valid)
        if engine.steps % given.save == 0:
            engine.save(given.out)
        log.step(engine.steps - 1, loss, **said)
        if engine.rank == 0 and (engine.steps % 10 == 0 or "valid" in said):
            found = "  ".join(f"{name} {value:.4f}" for name, value in said.items() if name.startswith("valid"))
            print(f"step {engine.steps}  loss {loss:.4f}  {found}", flush=True)
    log.close()
    engine.close()


if __name__ == "__main__":
    main()
