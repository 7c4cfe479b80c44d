"""The untouched module on one device, in bfloat16 with master weights in float32: the JSON of a run of ssdsl's."""

import argparse
import copy
import json
import time

import torch

from bench.peers.single import loss_of
from ssdsl.model.load import load


def main() -> None:
    """Trains, and prints the seconds of each step and the most memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compiled", action="store_true", help="by torch.compile")
    args = parser.parse_args()
    model = load(args.model).with_numbers()
    masters = [w.detach().to(args.device, torch.float32) for w in copy.deepcopy(model.module).parameters()]
    module = model.module.to(args.device, torch.bfloat16)
    if args.compiled:
        module.compile(dynamic=False)
    weights = list(module.parameters())
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)
    batch = {name: _half(tensor.to(args.device)) for name, tensor in model.batches[0].items()}
    step_s = []
    for _ in range(args.steps):
        start = time.perf_counter()
        loss_of(module(**batch)).backward()
        for master, weight in zip(masters, weights, strict=True):
            master.grad = weight.grad.float()
            weight.grad = None
        optimizer.step()
        torch._foreach_copy_([w.detach() for w in weights], masters)
        if args.device == "cuda":
            torch.cuda.synchronize()
        step_s.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() if args.device == "cuda" else 0
    print(json.dumps([{"step_s": step_s, "peak_bytes": peak}]))


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


if __name__ == "__main__":
    main()
