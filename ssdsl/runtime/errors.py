"""The error of a training script that asks for something impossible: the reason, and the change to make."""


class EngineError(Exception):
    """A mistake of the user, or a failure of the machine. `help` is the change to make.

    >>> print(EngineError("`runs/a` has no checkpoint", "name a folder that `engine.save` wrote"))
    `runs/a` has no checkpoint
      help: name a folder that `engine.save` wrote
    """

    def __init__(self, reason: str, help: str = "") -> None:
        super().__init__(reason, help)
        self.reason, self.help = reason, help

    def __str__(self) -> str:
        return f"{self.reason}\n  help: {self.help}" if self.help else self.reason
