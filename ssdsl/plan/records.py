"""The records of operators, by name. They are stored by the operators' numbers in the graph, because statements change
hundreds at once."""

from collections.abc import Iterator, Mapping

from ssdsl.plan.plan import OpPlan


class Records(Mapping[str, OpPlan]):
    """The records of operators, in the order of the graph. `numbers` has the position of each operator, `at` the record
    at each position, None if the plan says nothing."""

    __slots__ = ("at", "numbers")

    def __init__(self, numbers: Mapping[str, int], at: list[OpPlan | None] | None = None) -> None:
        self.numbers = numbers
        self.at: list[OpPlan | None] = [None] * len(numbers) if at is None else at

    def __getitem__(self, name: str) -> OpPlan:
        if (record := self.at[self.numbers[name]]) is None:
            raise KeyError(name)
        return record

    def __iter__(self) -> Iterator[str]:
        return (name for name, record in zip(self.numbers, self.at, strict=True) if record is not None)

    def __len__(self) -> int:
        return len(self.at) - self.at.count(None)

    def __copy__(self) -> "Records":
        return Records(self.numbers, [*self.at])
