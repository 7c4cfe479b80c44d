import torch
from torch.utils._python_dispatch import TorchDispatchMode
from . import random
from .bits import step_keys


class Draws(TorchDispatchMode):
    def __init__(self, seed, step, generator="hash", first=0, places=(), sizes=()):
        super().__init__()
        self.seed, self.step, self.generator, self.count, self.places, self.sizes = (
            seed,
            step,
            generator,
            first,
            places,
            sizes,
        )

    def skip(self, target):
        if target.name() in ("aten::normal_", "aten::uniform_"):
            self.count += 1

    def __enter__(self):
        super().__enter__()
        return self

    def __torch_dispatch__(self, target, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if target.name() not in ("aten::normal_", "aten::uniform_"):
            return target(*args, **kwargs)
        t = args[0]
        n = self.count
        self.count += 1
        key = step_keys(torch.tensor([self.seed, self.step]), n + 1)[n]
        sizes = self.sizes or t.shape
        idx = self.places or [torch.arange(s) for s in t.shape]
        f = random.normal if "normal" in target.name() else random.uniform
        x = f(key, idx, sizes, self.generator, t.dtype)
        a, b = (*args[1:], 0.0, 1.0)[:2] if len(args) != 2 else (args[1], 1.0)
        if len(args) == 1:
            a, b = 0.0, 1.0
        x = x * b + a if "normal" in target.name() else x * (b - a) + a
        return t.copy_(x)
