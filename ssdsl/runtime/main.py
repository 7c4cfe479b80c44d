"""The training program: `torchrun main.py --steps 10`. Reads the table beside it and runs this rank's role."""

import argparse
import importlib
import json
import os
import resource
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .collectives import COUNTS
from .engine import Engine
from .failure import leave, report_failure, save, state_folder, whole
from .mesh import WORLD, Mesh
from .pulse import Pulse
from .record import Recorder, time_transfers
from .start import find_place, join_group
from .table import Piece, Table, is_at, join_world, pieces_of, role_of, tasks_of, tie_groups, transfers_of, weights_of

FOLDER = Path(__file__).parent.parent


def main() -> None:
    """Trains for some steps; every rank reports to `--out`, the one with the loss also as it goes."""
    options = _options()
    table = json.loads((FOLDER / "program.json").read_text())
    ranks = int(table["world_size"])
    rank = find_place(ranks, str(FOLDER / "main.py"))
    folder, pulse = state_folder(options.out), None
    try:
        pulse = Pulse(folder, rank)
        pulse.says("joining the other ranks")
        join_group(FOLDER, options.device, options.seed, options.timeout)
        join_world(table, rank)
        role = role_of(table, rank)
        if role is None:  # the plan gives this rank nothing to do; it still joins what all ranks join
            tie_groups(table, rank)
            _idle(rank, options)
        else:
            pulse.says("loading its weights", role["name"])
            trainer = Trainer(table, role, rank, options)
            pulse.watch(trainer.now)
            trainer.train()
        pulse.says("waiting for the other ranks to end")
        dist.barrier()
        dist.destroy_process_group()
        pulse.end()
        leave(folder, options.out)
    except BaseException as error:
        report_failure(error, rank, pulse, folder, ranks, options.timeout)
        sys.stdout.flush()
        os._exit(1)  # the other ranks may wait for this one in a collective: leave without waiting for them


def _idle(rank: int, options: argparse.Namespace) -> None:
    """The report of a rank that the plan gives nothing to do."""
    if options.out is not None:
        report = {"rank": rank, "role": "idle", "losses": [], "step_s": [], "peak_bytes": 0, "comm": {}}
        _write_report(options.out, report)
        if options.dump:
            empty: dict[str, Any] = {"weights": {}, "buffers": {}, "grads": [{} for _ in range(options.steps)]}
            save(empty, options.out / f"rank{rank}.pt")


def _write_report(out: Path, report: dict[str, Any]) -> None:
    with whole(out / f"rank{report['rank']}.json") as beside:
        beside.write_text(json.dumps(report))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="training steps (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of torch's generators (default 0)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--out", type=Path, default=None, help="folder for the ranks' reports")
    parser.add_argument(
        "--timeout", type=float, default=600, help="seconds to wait for a rank that does not move (default 600)"
    )
    parser.add_argument("--record", action="store_true", help="report when each task of each step starts and ends")
    parser.add_argument(
        "--dump", action="store_true", help="save gradients of every step and the final weights to --out"
    )
    return parser.parse_args()


class Trainer:
    """One rank's program: its code, weights, engine and optimizer."""

    def __init__(self, table: Table, role: Table, rank: int, options: argparse.Namespace) -> None:
        self.table, self.role, self.rank, self.options = table, role, rank, options
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if options.device == "cuda" else torch.device("cpu")
        )
        sys.path.insert(0, str(FOLDER))
        if options.record:  # what an optimizer loads is no memory of the step
            torch.optim.AdamW([torch.zeros(1, requires_grad=True)], fused=True)
        self.base_bytes = self._held()  # before there are weights
        self.code = importlib.import_module(f"role_{role['name']}")
        state = torch.load(FOLDER / "weights.pt", mmap=True, weights_only=True)
        self.batches = torch.load(FOLDER / "inputs.pt", weights_only=True)
        with torch.no_grad():
            self.weights = weights_of(table, role, rank, state, self.device)
            given = {name: state[name].to(self.device) for name in table["constants"] if name in state}
            self.constants = self.code.constants(given, self.device)
        transfers = transfers_of(table, rank)
        self.engine = Engine(self.code.BLOCKS, transfers, tasks_of(role), self.weights, self.device, WORLD.transfers)
        self.optimizer = self._optimizer()
        self.pieces: dict[str, Piece] = {
            p.name: p for u in role["units"] for p in pieces_of(u["weights"], role, rank)
        } | {p.name: p for p in pieces_of(role["others"], role, rank)}
        self.losses: list[float] = []
        self.times: list[float] = []
        self.dumped: list[dict[str, Any]] = []

    def _optimizer(self) -> torch.optim.Optimizer | None:
        trained = [p for unit in self.weights.units for p in unit.trained()]
        if not trained:
            return None
        if self.options.optimizer == "sgd":
            return torch.optim.SGD(trained, lr=self.options.lr)
        return torch.optim.AdamW(trained, lr=self.options.lr, fused=True)

    def train(self) -> None:
        """All steps, then the reports."""
        transfers_s: dict[str, float] = {}
        if self.options.record:
            engine = self.engine
            engine.recorder = Recorder(self.device)
            transfers_s = time_transfers(engine.transfers, len(self.table["transfers"]), engine.mover, self.device)
        for step in range(self.options.steps):
            recorder = self.engine.recorder
            with recorder.step(step, self.options.steps - 1) if recorder is not None else nullcontext():
                start = time.perf_counter()
                loss = self._step(step)
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                self.times.append(time.perf_counter() - start)
            if loss is not None:
                self.losses.append(loss)
                self._progress(step, loss)
        self._report(transfers_s)

    def now(self) -> tuple[int, str]:
        """The step and the task that run now, for another thread."""
        doing = self.engine.doing
        return len(self.times), str(doing) if doing is not None else "gradients, optimizer and reports"

    def _step(self, step: int) -> float | None:
        batch = {k: v.to(self.device) for k, v in self.batches[step % len(self.batches)].items()}
        with torch.no_grad():
            prepared = self.code.prepare(self.constants | batch)
        losses = self.engine.step(prepared)
        with torch.no_grad():
            if self.options.dump:
                self.dumped.append(self._gradients())
            recorder = self.engine.recorder
            begin = recorder.now() if recorder is not None else 0.0
            if self.optimizer is not None:
                self.optimizer.step()
            for unit in self.weights.units:
                unit.after_step()
            if recorder is not None:
                recorder.add("optimizer", begin)
            return self._loss(losses)

    def _loss(self, losses: list[torch.Tensor]) -> float | None:
        """The step's loss on the ranks that compute it: the sum of its parts in time, and over the axes that split
        it."""
        place = self.table["loss"]
        if is_at(place, self.rank) is None:
            return None
        loss = torch.stack(losses).sum()
        if place["axes"]:
            dist.all_reduce(loss, group=WORLD.groups[place["mesh"], tuple(place["axes"])].process_group)
        return float(loss)

    # -- reports -----------------------------------------------------------------------------------------------------

    def _progress(self, step: int, loss: float) -> None:
        if self.rank != _first_rank(self.table["loss"]):
            return
        line = {"step": step, "loss": loss, "time_s": self.times[-1]}
        if self.options.out is None:
            print(f"step {step}  loss {loss:.6f}  {self.times[-1] * 1e3:.1f} ms", flush=True)
        else:
            with (self.options.out / "progress.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _report(self, transfers_s: dict[str, float]) -> None:
        out = self.options.out
        if out is None:
            if self.rank == _first_rank(self.table["loss"]) and self.times:
                print(f"median step {statistics.median(self.times) * 1e3:.1f} ms")
            return
        if self.options.dump:
            save({**self._state(), "grads": self.dumped}, out / f"rank{self.rank}.pt")
        report = {
            "rank": self.rank,
            "role": self.role["name"],
            "losses": self.losses,
            "step_s": self.times,
            "peak_bytes": self._peak(),
            "comm": COUNTS,
            "base_bytes": self.base_bytes,
        }
        if self.engine.recorder is not None:
            recorder = self.engine.recorder
            report |= {"recorded": recorder.steps, "tensor_bytes": recorder.tensor_bytes, "transfers_s": transfers_s}
        _write_report(out, report)

    def _held(self) -> int:
        """The bytes that the process holds now."""
        if self.device.type == "cuda":
            return torch.cuda.memory_allocated()
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        except OSError:  # not Linux
            return self._peak()

    def _peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def _gradients(self) -> dict[str, Any]:
        found = {}
        for unit in self.weights.units:
            if unit.shard is not None:
                row = _whole_row(unit, unit.shard.grad)
                values: dict[str, torch.Tensor | None] = dict(unit._views(row))
            else:
                values = {n: p.grad for n, p in unit.parameters.items()}
            for name, value in values.items():
                piece = self.pieces[name]
                found[name] = piece.saved(value if value is not None else torch.zeros_like(self.weights.tensors[name]))
        return found

    def _state(self) -> dict[str, Any]:
        weights = {}
        for unit in self.weights.units:
            values = unit._views(_whole_row(unit, unit.shard)) if unit.shard is not None else unit.parameters
            weights.update({n: self.pieces[n].saved(v) for n, v in values.items()})
        return {"weights": weights, "buffers": {n: self.pieces[n].saved(v) for n, v in self.weights.buffers.items()}}


def _whole_row(unit: Any, mine: torch.Tensor | None) -> torch.Tensor:
    """All parts of a row that is cut over a group, for a dump; not counted as communication of the step."""
    mine = torch.zeros_like(unit.shard) if mine is None else mine.detach()
    parts = [torch.empty_like(mine) for _ in range(unit.over.size)]
    dist.all_gather(parts, mine.contiguous(), group=unit.over.process_group)
    return torch.cat(parts)


def _first_rank(place: Table) -> int:
    mesh: Mesh = WORLD.meshes[place["mesh"]]
    return mesh.rank(dict.fromkeys(mesh.axes, 0) | place["fixed"])
