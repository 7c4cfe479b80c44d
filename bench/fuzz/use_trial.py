"""One program of use on engines in this process, against the same script on one device."""

import contextlib
import copy
import io
import math
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import ExponentialLR

from bench.fuzz.single import GAMMA, OPTIMIZERS, SEED, Batch, Result, dataset, leaves, on_one_device, rows_of
from bench.fuzz.trial import Outcome, captured, error_sign, trace, words
from bench.fuzz.use import LOSSES, Evaluate, Predict, Resume, Run, Save, Train, Use
from ssdsl.model.load.model import Model
from ssdsl.record import replace
from ssdsl.run.in_process.precision import nudged, precision
from ssdsl.run.in_process.run_in_process import RanksFailed, run_ranks
from ssdsl.run.rank0_compiler import Live
from ssdsl.run.verify.assemble import assemble
from ssdsl.run.verify.compare import FACTOR, tensors
from ssdsl.runtime.checkpoints.content import MODEL, STATE
from ssdsl.runtime.checkpoints.reader import Checkpoint
from ssdsl.runtime.errors import EngineError
from ssdsl.runtime.ranks.world import World
from ssdsl.runtime.train.engine import Engine
from ssdsl.runtime.train.observers import state
from ssdsl.text.diagnostic import PlanError

CPU = torch.device("cpu")
ALLOWED = {torch.float64: 1e-8, torch.float32: 3e-4, torch.bfloat16: 0.1}  # of a tensor's largest element


class Differ(Exception):
    """The ranks do not hold what they should; the text says what."""


def try_use(use: Use) -> Outcome:
    """What becomes of the program."""
    try:
        model, _ = captured(use.recipe)
    except PlanError as error:
        return Outcome("refused", error.diagnostics[0].code, str(error))
    except Exception as error:
        return Outcome("capture", error_sign(error), trace(error))
    losses = {name: name for name in LOSSES} if use.recipe.returns_all else None
    model = replace(model, autocast=torch.bfloat16 if use.is_autocast else None, loss=losses)
    try:
        expected = on_one_device(use, model)
    except Exception as error:  # of the model itself, or of its optimizer
        return Outcome("refused", "fails on one device", trace(error))
    try:
        found = on_engines(use, model)
        unit = precision(replace(model, batches=(dataset(model, use.samples),)))
        others = [on_one_device(use, nudged(model, seed, unit)) for seed in (1, 2)]
        return _compared(found, expected, others, unit)
    except EngineError as error:
        code = re.search(r"error\[(E\d+)\]", str(error))
        return Outcome("refused", code[1] if code else words(str(error)), str(error))
    except RanksFailed as failure:
        return Outcome(failure.kind, words(str(failure).strip().splitlines()[-1]), str(failure))
    except (Differ, PlanError) as error:
        return Outcome("wrong", words(str(error)), str(error))
    except Exception as error:
        return Outcome("verify", error_sign(error), trace(error))


class Samples(torch.utils.data.Dataset[Batch]):
    """The rows of a data set."""

    def __init__(self, data: Batch) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(next(iter(self.data.values())))

    def __getitem__(self, number: int) -> Batch:
        return {name: tensor[number] for name, tensor in self.data.items()}


def on_engines(use: Use, model: Model) -> Result:
    """Each run on an engine that is compiled for it; raises EngineError, RanksFailed, Differ."""
    result = Result()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):  # warnings of plans
        folder = Path(name)
        for number, run in enumerate(use.runs):
            is_last = number == len(use.runs) - 1
            saved = (folder / "run").exists()
            ranks = run_ranks(devices(run.plan), partial(_rank, use, model, run, folder, is_last, saved))
            if isinstance(ranks[0], EngineError):
                raise ranks[0]
            losses = [[x for x in yielded if isinstance(x, float)] for yielded, _ in ranks]
            if len({*map(str, losses)}) > 1:
                raise Differ(f"losses of ranks differ: {losses}")
            result.losses += losses[0]
            result.outputs += [x for x in ranks[0][0] if not isinstance(x, float)]
        result.tensors = _saved(folder / "end")
        _check_copies(dict(enumerate(pieces for _, pieces in ranks)), precision(model))
    return result


def _rank(use: Use, model: Model, run: Run, folder: Path, is_last: bool, saved: bool, world: World, place: Any) -> Any:
    """One rank of a run: its losses and its pieces of what is trained, or the error that all ranks raise."""
    path = folder / "plan.ssp"
    path.write_text("\n".join(run.plan) + "\n")
    own = replace(model, module=copy.deepcopy(model.module))
    try:
        engine = Engine(Live(path, own, {}, world.control), world, CPU, seed=SEED, background=False)
        place(lambda: engine.now()[1])
        losses = list(_script(engine, use, run, dataset(model, use.samples), folder / "run", saved))
        if is_last:
            engine.save(folder / "end", wait=True)
        return losses, state(engine.weights, engine.pieces)
    except EngineError as error:
        return error


def _check_copies(ranks: Mapping[int, Any], unit: torch.dtype) -> None:
    """Raises Differ where two ranks hold unequal copies."""
    for kind in ("weights", "buffers"):
        for what, spread in assemble(kind, {rank: pieces[kind] for rank, pieces in ranks.items()}).spreads.items():
            if not spread.error <= ALLOWED[unit] * max(1.0, abs(spread.first_value)):
                raise Differ(f"copies of {what} on ranks {spread.first} and {spread.second} differ: {spread}")


def devices(plan: Iterable[str]) -> int:
    """How many devices a plan has.

    >>> devices(["mesh a(dp = 2, tp = 3)", "mesh b(ep = 1)", "split model by batch into dp"])
    7
    """
    meshes = (re.findall(r"= (\d+)", text) for text in plan if text.startswith("mesh"))
    return sum(math.prod(map(int, sizes)) for sizes in meshes)


Yielded = float | dict[str, torch.Tensor]


def _script(engine: Engine, use: Use, run: Run, data: Batch, folder: Path, saved: bool) -> Iterator[Yielded]:
    """What a training script does; the losses of its steps and evaluations, and what it predicts. `saved`: whether
    another run has saved; to look for the folder would be a race with ranks that are ahead."""
    kind, options = OPTIMIZERS[use.optimizer]
    optimizers = [engine.optimizer(kind, weights=pattern, **options) for pattern in use.parts or (None,)]
    scheduler = ExponentialLR(engine.optim, GAMMA) if use.is_scheduled else None
    loader = batches = None
    if use.shuffle is not None:
        loader = engine.loader(Samples(data), use.size, shuffle=use.shuffle, seed=SEED, drop_last=False)
    for action in (Resume(), *run.actions):
        match action:
            case Train(rows, clip, update, scale, length, loss, part):
                if loader is not None:
                    batches = batches or loader.epochs()
                batch = next(batches) if batches is not None else rows_of(data, *(rows or (0, 1)), length)
                steps = optimizers[part] if use.parts else None
                yield engine.step(batch, loss=loss, optimizer=steps, clip=clip, update=update, scale=scale)
                if update and scheduler is not None:
                    scheduler.step()
            case Evaluate(pieces, loss):
                yield engine.evaluate([rows_of(data, *few) for few in pieces], loss=loss)
            case Predict(few, length, outputs):
                yield leaves(engine.predict(rows_of(data, *few, length), *outputs))
            case Save():
                engine.save(folder)
                saved = True
            case Resume():
                if saved:
                    engine.resume(folder)
                    batches = None
    engine.close()


def _saved(folder: Path) -> dict[tuple[str, ...], torch.Tensor]:
    """All tensors of a checkpoint: of the model and of the optimizer."""
    checkpoint = Checkpoint.open(folder)
    found = {("model", *path): checkpoint.whole((*MODEL, *path)) for path in checkpoint.under(*MODEL)}
    return found | {("optimizer", *path): checkpoint.whole((*STATE, *path)) for path in checkpoint.under(*STATE)}


def _compared(found: Result, expected: Result, others: list[Result], unit: torch.dtype) -> Outcome:
    """The first number that is further off than runs with other last digits are."""
    share = ALLOWED[unit]
    pairs = [
        (f"loss {n}", *map(torch.tensor, (a, b)), [torch.tensor(o.losses[n]) for o in others])
        for n, (a, b) in enumerate(zip(found.losses, expected.losses, strict=True))
    ]
    for n, (predicted, wanted) in enumerate(zip(found.outputs, expected.outputs, strict=True)):
        shapes = [{name: tuple(x.shape) for name, x in outputs.items()} for outputs in (predicted, wanted)]
        if shapes[0] != shapes[1]:
            return Outcome("wrong", "output", f"output {n}: {shapes[0]} instead of {shapes[1]}")
        for name, tensor in wanted.items():
            near = [o.outputs[n][name] for o in others]
            pairs.append((f"output {n} {name}", predicted[name], tensor, near))
    tied = _tied(expected.tensors)
    for path, tensor in expected.tensors.items():
        if path not in found.tensors:
            if path not in tied and _moved(path, others, tensor):
                return Outcome("wrong", f"{path[0]} lost", f"{'.'.join(path)} is not in the checkpoint")
            continue
        pairs.append((" ".join(path), found.tensors[path], tensor, [o.tensors[path] for o in others]))
    for name, got, wanted, moved in pairs:
        growth = max(tensors("", "", other, wanted).error for other in moved)
        compared = tensors("", "", got, wanted)
        allowed = max(FACTOR * growth, share * max(compared.largest, share))
        if not compared.error <= allowed:
            at = f"{name} at {list(compared.index)}: {compared.got} instead of {compared.expected}"
            return Outcome("wrong", name.split()[0], f"{at}; allowed {allowed:.3g}, growth {growth:.3g}")
    return Outcome("equal")


def _tied(found: dict[tuple[str, ...], torch.Tensor]) -> set[tuple[str, ...]]:
    """Further names of a tensor."""
    first: dict[int, tuple[str, ...]] = {}
    return {path for path, tensor in found.items() if first.setdefault(tensor.data_ptr(), path) != path}


def _moved(path: tuple[str, ...], others: list[Result], tensor: torch.Tensor) -> bool:
    """Whether what is missing has numbers that matter: not a state that is all zero."""
    return bool(tensor.any()) or any(bool(other.tensors[path].any()) for other in others)
