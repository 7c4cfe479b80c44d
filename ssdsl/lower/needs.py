"""What a task waits for: the transfers that bring its inputs, or the gradients of its outputs."""

import itertools
from collections.abc import Iterator

from ssdsl.lower.schedule import Block, Input, Task, Transfer
from ssdsl.plan.plan import Phase

Key = tuple[int, tuple[int, ...], bool]  # a transfer's number, its coordinate, and whether it is forward


class Needs:
    """The transfers by the blocks that wait for them."""

    def __init__(self, blocks: tuple[Block, ...], transfers: tuple[Transfer, ...]) -> None:
        self.blocks = blocks
        self.incoming: dict[int, list[tuple[Input, Transfer]]] = {}
        self.returning: dict[int, list[Transfer]] = {}
        moved = {(t.value, t.consumer): t for t in transfers if t.value}
        for block in blocks:
            for given in block.inputs:
                if (transfer := moved.get((given.value, block.number))) is not None:
                    self.incoming.setdefault(block.number, []).append((given, transfer))
                    if transfer.backward is not None and block.has_backward:
                        self.returning.setdefault(transfer.producer, []).append(transfer)

    def of(self, task: Task) -> Iterator[Key]:
        """Everything that must have arrived before a task of a block can start."""
        if task.phase is Phase.FORWARD:
            names = [t.name for t in self.blocks[task.block].time]
            at = dict(zip(names, task.coordinate, strict=True))
            for given, transfer in self.incoming.get(task.block, ()):
                joined = {c.index for c in given.combines}
                choices = (range(t.count) if t.name in joined else (at[t.name],) for t in transfer.time)
                for coordinate in itertools.product(*choices):
                    yield transfer.number, coordinate, True
        elif task.phase is not Phase.WGRAD:
            for transfer in self.returning.get(task.block, ()):
                yield transfer.number, task.coordinate, False
