"""One process of two, in which PyTorch's pipeline runs a table; prints the gradients' difference from those without a
pipeline."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH, BATCH = 8, 16


def layers(stages: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(stages)]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()


def main(file: str, stages: int, micro: int, where: list[int]) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    x, target = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    whole = layers(stages)
    loss(nn.Sequential(*whole)(x), target).backward()
    parts = layers(stages)
    mine = [s for s in range(stages) if where[s] == rank]
    held = [PipelineStage(parts[s], s, stages, torch.device("cpu")) for s in mine]
    schedule = _PipelineScheduleRuntime(held, micro, loss_fn=loss, scale_grads=False)
    schedule._load_csv(file)
    schedule.step(*([x] if 0 in mine else []), **({"target": target} if stages - 1 in mine else {}))
    pairs = [(p, q) for s in mine for p, q in zip(whole[s].parameters(), parts[s].parameters(), strict=True)]
    worst = max((p.grad - q.grad).abs().max().item() for p, q in pairs)  # type: ignore[operator, union-attr]
    print(f"rank {rank}: {len(pairs)} gradients, {'right' if worst < 1e-4 else worst}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [int(word) for word in sys.argv[4].split(",")])
