"""A program of use in plain PyTorch on one device: what it trains on, what it trains with, and what comes out."""

import copy
import itertools
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.optim.lr_scheduler import ExponentialLR, LRScheduler

from bench.fuzz.use import Evaluate, Predict, Resume, Save, Train, Use
from ssdsl.model.load.model import Model
from ssdsl.runtime.data.sample_order import SampleOrder
from ssdsl.runtime.random.single_device import Draws

SEED = 5
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {  # a large eps: else rounding of a gradient near zero is a step
    "sgd": (torch.optim.SGD, {"lr": 0.05}),
    "momentum": (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-2}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "eps": 1e-2, "amsgrad": True, "weight_decay": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "eps": 1e-2, "momentum": 0.5}),
}
GAMMA = 0.8
Batch = dict[str, torch.Tensor]


@dataclass(slots=True)
class Result:
    """The losses of steps and evaluations in turn, what was predicted, and at the end what is trained, by kind and
    name."""

    losses: list[float] = field(default_factory=list)
    outputs: list[dict[str, torch.Tensor]] = field(default_factory=list)
    tensors: dict[tuple[str, ...], torch.Tensor] = field(default_factory=dict)


def dataset(model: Model, samples: int) -> Batch:
    """Rows like those of the example: in another order, and with other numbers, each time that they come again."""
    (example,) = model.batches
    rows = next(iter(example.values())).shape[0]
    turned = torch.arange(samples) // rows
    chosen = (torch.arange(samples) + turned) % rows

    def made(tensor: torch.Tensor) -> torch.Tensor:
        result = tensor[chosen]
        factor = (1 + 0.3 * turned).view(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)
        return result * factor if tensor.is_floating_point() else result

    return {name: made(tensor) for name, tensor in example.items()}


def rows_of(data: Batch, first: int, count: int, length: int | None = None) -> Batch:
    """Some rows of each input, with sequences of another length, which repeat what they have."""
    rows = {name: tensor[first : first + count] for name, tensor in data.items()}
    if length is None:
        return rows
    return {name: tensor[:, torch.arange(length) % tensor.shape[1]] for name, tensor in rows.items()}


def leaves(returned: Any, path: str = "") -> dict[str, torch.Tensor]:
    """The tensors of what a forward returns, by key and position: `some.1.half`."""
    match returned:
        case torch.Tensor():
            return {path: returned}
        case dict():
            items = returned.items()
        case _:
            items = dict(enumerate(returned)).items()
    found = [leaves(value, f"{path}.{key}" if path else str(key)) for key, value in items]
    return {name: tensor for part in found for name, tensor in part.items()}


class Single:
    """A training script of plain PyTorch, and what it has saved."""

    def __init__(self, use: Use, model: Model) -> None:
        self.use, self.model, self.module = use, model, copy.deepcopy(model.module)
        self.data = dataset(model, use.samples)
        kind, options = OPTIMIZERS[use.optimizer]
        self.weights = [self._weights(pattern) for pattern in use.parts or ("*",)]
        self.optimizers = [kind(weights, **options) for weights in self.weights]
        self.scheduler: LRScheduler | None = ExponentialLR(self.optimizers[0], GAMMA) if use.is_scheduled else None
        self.micro = self.position = 0
        self.order = SampleOrder(use.samples, use.size, bool(use.shuffle), drop_last=False)
        self.kept, self.is_saved = self.copied(), False

    def _weights(self, patterns: str) -> list[torch.nn.Parameter]:
        named = self.module.named_parameters()
        chosen = (p for name, p in named if any(fnmatchcase(name, one) for one in patterns.split("|")))
        return [p for p in chosen if p.requires_grad]

    def copied(self) -> Any:
        grads = {n: None if p.grad is None else p.grad.clone() for n, p in self.module.named_parameters()}
        states = (self.module.state_dict(), [o.state_dict() for o in self.optimizers])
        scheduler = self.scheduler.state_dict() if self.scheduler is not None else None
        return copy.deepcopy((*states, scheduler, grads, self.micro, self.position))

    def resume(self) -> None:
        """Goes back to what was saved last, or to the beginning."""
        weights, states, scheduler, grads, self.micro, self.position = copy.deepcopy(self.kept)
        self.module.load_state_dict(weights)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        if self.scheduler is not None:
            self.scheduler.load_state_dict(scheduler)
        for name, weight in self.module.named_parameters():
            weight.grad = grads[name]

    def train(self, action: Train) -> float:
        """One step, or a part of one."""
        by_rows = self.use.shuffle is None
        batch = rows_of(self.data, *(action.rows or (0, 1)), action.length) if by_rows else self.next()
        weights, optimizer = self.weights[action.part], self.optimizers[action.part]
        others = [w for part in self.weights if part is not weights for w in part]
        kept = [w.grad for w in others]
        for weight in others:
            weight.grad = None  # backward would add to the kept tensor itself
        with Draws(SEED, self.micro, self.model.generator):
            loss = self.loss(batch, self.module.train(), action.loss)
            (loss * action.scale).backward()
        for weight, grad in zip(others, kept, strict=True):
            weight.grad = grad
        self.micro += 1
        if action.update:
            if action.clip is not None:
                torch.nn.utils.clip_grad_norm_(weights, action.clip)
            optimizer.step()
            optimizer.zero_grad()
            if self.scheduler is not None:
                self.scheduler.step()
        return float(loss.detach())

    def loss(self, batch: Batch, module: torch.nn.Module, name: str | None) -> torch.Tensor:
        """One of the model's losses, or their sum."""
        model = self.model if name is None else self.model.with_loss(name)
        return model.compute(batch, module)  # type: ignore[no-any-return]

    def next(self) -> Batch:
        """The loader's next batch."""
        epoch, number = divmod(self.position, len(self.order))
        self.position += 1
        rows = next(iter(self.order.batches(SEED, epoch, number)))
        return {name: tensor[rows] for name, tensor in self.data.items()}

    @torch.no_grad()
    def evaluate(self, action: Evaluate) -> float:
        """The mean over samples, in eval mode; as an engine's it changes nothing, whatever the module does."""
        module, total = copy.deepcopy(self.module).eval(), 0.0
        for first, count in action.batches:
            with Draws(SEED, self.micro, self.model.generator):
                total += count * float(self.loss(rows_of(self.data, first, count), module, action.loss))
        return total / sum(count for _, count in action.batches)

    @torch.no_grad()
    def predict(self, action: Predict) -> dict[str, torch.Tensor]:
        """What the forward returns in eval mode, or what is asked for of it."""
        module = copy.deepcopy(self.module).eval()
        with Draws(SEED, self.micro, self.model.generator), self.model.casting():
            returned = leaves(module(**rows_of(self.data, *action.rows, action.length)))
        return {name: returned[name] for name in action.outputs or returned}


def on_one_device(use: Use, model: Model) -> Result:
    """The same script, each of whose runs begins with what was saved last."""
    single, result = Single(use, model), Result()
    for run in use.runs:
        single.resume()
        for action in run.actions:
            match action:
                case Train():
                    result.losses.append(single.train(action))
                case Evaluate():
                    result.losses.append(single.evaluate(action))
                case Predict():
                    result.outputs.append(single.predict(action))
                case Save():
                    single.kept, single.is_saved = single.copied(), True
                case Resume():
                    if single.is_saved:
                        single.resume()
    named = dict(single.module.named_parameters())
    result.tensors = {("model", name): tensor.detach() for name, tensor in single.module.state_dict().items()}
    for optimizer, (name, weight) in itertools.product(single.optimizers, named.items()):
        for key, value in optimizer.state.get(weight, {}).items():
            if isinstance(value, torch.Tensor) and value.dim():
                result.tensors["optimizer", name, key] = value
    return result
