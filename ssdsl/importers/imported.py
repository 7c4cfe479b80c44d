"""What an importer returns: the text of a plan, and three lists in which everything of its source stands once."""

from ssdsl.record import Record


class Item(Record):
    """One thing that a source says, as it is written there, such as `--tensor-model-parallel-size 8`.

    `becomes` is the line of the plan, or the reason why there is none. `line` is its line in the source, 0 if there
    is one line.
    """

    written: str
    becomes: str
    line: int = 0


class Imported(Record):
    """A plan, and what became of each thing that its source says.

    `kind` says what the source is, in words. `said` became a line of the plan or a part of its model. `silent` has
    nothing to say in a plan: files, logs, what a loop does. `refused` asks for something that this plan does not do, or
    is ignored by the source's own tool without a word. `files` are further files, which lie beside the plan: their
    names and texts. `model` is the `--model` of the plan's header, None where the source names none. What a trace makes
    is no plan: its text has costs.
    """

    kind: str
    text: str
    said: tuple[Item, ...]
    silent: tuple[Item, ...]
    refused: tuple[Item, ...]
    model: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    is_plan: bool = True

    @property
    def items(self) -> tuple[Item, ...]:
        """All of the three lists."""
        return self.said + self.silent + self.refused
