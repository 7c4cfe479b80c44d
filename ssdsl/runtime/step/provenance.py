"""Finds the value, the layer and the plan's statement behind the line of a role's code where a rank waits or fails.

During a step a rank records only its current line in the role's code. The text is made on demand: of the comment behind
a line that communicates, and of the table's operators, by line.
"""

import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType
from typing import Any

import torch

from ..errors import EngineError
from ..program.table import FlatEntry, RoleEntry, SignalEntry, Table, TransferEntry, in_layer
from ..ranks.role_place import role_line
from ..ranks.transfers import Mover
from ..ranks.world import AwaitedMessage, GroupCall, World

MANY = 8
COMMENT = "  # "  # begins the comment behind a line
TORCH = str(Path(torch.__file__).parent)


class Sites:
    """The purpose of lines in a role's file: operators, collectives, messages. `code` is the file's text."""

    def __init__(self, table: Table, role: RoleEntry, code: str) -> None:
        self.role, self.lines = role, code.splitlines()
        self.messages = {message.number: message for message in table.messages}
        self.flats = {flat.number: flat for flat in role.flats}

    def waits(self, world: World) -> str:
        """A text of what the rank waits for now, and of what else it has started; "" if it waits for nothing."""
        match world.call:
            case GroupCall() as call:
                others = [self._collective(c, world) for s in [*world.in_flight] if (c := s.call) is not call]
                shown = [*others[:MANY], *(["..."] if len(others) > MANY else [])]
                return "; also started: ".join([self._collective(call, world), *([", ".join(shown)] if shown else [])])
            case AwaitedMessage() as exchange:
                return self._exchange(exchange)
            case _:
                return ""

    def unawaited(self, world: World, mover: Mover) -> list[str]:
        """What the rank has started and nobody has waited for, as texts: collectives, and receives of messages."""
        collectives = [self._collective(started.call, world) for started in world.in_flight]
        return [*collectives, *map(self._exchange, mover.expected())]

    def failed(self, error: Exception, batch: Mapping[str, torch.Tensor]) -> EngineError | None:
        """An operator's error with its place in model and plan, and the numbers in this rank's part of a batch; None if
        the place is not a look-up."""
        frames = [f for f, _ in traceback.walk_tb(error.__traceback__)]
        while frames and frames[-1].f_code.co_filename.startswith(TORCH):
            frames.pop()
        if not frames or not (frame := frames[-1]).f_code.co_filename.startswith("role_"):
            return None  # for example where weights are gathered in the same line
        found = self.operator(frame.f_lineno, getattr(frame.f_locals.get("w"), "layer", ""), looks_up=True)
        if found is None:
            return None
        first = str(error).strip().partition("\n")[0]
        numbers = (f"`{n}` from {int(t.min())} to {int(t.max())}" for n, t in batch.items() if _is_whole(t))
        reason = f"{found} failed: {type(error).__name__}: {first}\n  this rank was given {', '.join(numbers)}"
        return EngineError(reason, "correct the batch, if it has a number that the module does not take, or the module")

    def operator(self, line: int, layer: str, *, looks_up: bool = False) -> str | None:
        """The operator at a line of the role's file, in a function that runs for a layer, as a text with its place in
        model and plan; None if there is none. With `looks_up` only one that reads integers of the batch.

        `linear` in module `head` (net.py:14; plan.ssp:3: split model by batch into dp)
        """
        site = self.role.operators.get(line)
        if site is None or (looks_up and not site.reads):
            return None
        module = f"module `{in_layer(site.module, layer)}`" if site.module else "the model"
        where = "; ".join(filter(None, (site.source, site.plan)))
        return f"`{site.kind}` in {module}" + (f" ({where})" if where else "")

    def started(self, world: World) -> str:
        """The last collective that the rank started, as a text."""
        return self._collective(world.last, world) if world.last is not None else ""

    def _collective(self, call: GroupCall, world: World) -> str:
        group = call.group
        axes = next((axes for (_, axes), known in world.groups.items() if known is group), None)
        over = ", ".join(axes) if axes is not None else "the copies of a tied weight"
        return f"{call.kind} over {over} ({_ranks(group.ranks)}){self._purpose(call.site, world.layer)}"

    def _purpose(self, site: Any, layer: str) -> str:
        match site:
            case int():
                return self._weights(site)
            case (CodeType() as code, int() as instruction, str() as layer):
                line = _line(code, instruction)
            case _:
                _, line = role_line() or ("", 0)
        comment = self.comment(line)
        return f" of {in_layer(comment, layer)}" if comment else ""

    def comment(self, line: int) -> str:
        """The comment behind a line of the role's file that communicates, with stars for numbers of the layer."""
        return self.lines[line - 1].partition(COMMENT)[2] if 0 < line <= len(self.lines) else ""

    def _weights(self, number: int) -> str:
        flat = self.flats.get(number)
        if flat is None:
            return ""
        names = [w.name for w in flat.weights]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f" for weight `{names[0]}`{more}{_statement(flat)}"

    def _exchange(self, exchange: AwaitedMessage) -> str:
        message = self.messages.get(exchange.number)
        what = f"`{message.value}`" if isinstance(message, TransferEntry) else "the signal that an earlier task is done"
        what = f"the gradient of {what}" if exchange.gradient else what
        way = {"receive": "from", "send": "to", "broadcast": "among"}[exchange.verb]
        return f"{exchange.verb} of {what} {way} {_ranks(exchange.ranks)}{_statement(message)}"


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and tensor.dtype in (torch.int64, torch.int32)


def _line(code: CodeType, instruction: int) -> int:
    """The line of an instruction in a code object."""
    return next((line or 0 for start, end, line in code.co_lines() if start <= instruction < end), 0)


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:MANY])) + (f", ... of {len(ranks)}" if len(ranks) > MANY else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _statement(site: FlatEntry | TransferEntry | SignalEntry | None) -> str:
    """The plan's statement as a text: `; megatron.ssp:15: split model by heads into tp`."""
    return f"; {site.plan}" if site is not None and site.plan else ""
