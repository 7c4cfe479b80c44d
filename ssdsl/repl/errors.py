"""Diagnostics of the commands of `ssdsl repl`: E08xx. Mistakes in statements are those of any plan."""

from ssdsl.lang.suggest import suggest
from ssdsl.text.diagnostic import Diagnostic

OF_FILES = ("run", "verify", "search", "sweep", "matrix", "reshard", "compile", "export", "profile", "capture", "fmt")
OF_NONE = ("models", "plans", "ops", "clusters", "cache", "checkpoint", "discover", "new", "import")


class UnknownCommand(Diagnostic):
    """A line that begins with `:` is a command of the session, such as `:undo`; `:help` lists them."""

    code = "E0801"
    title = "there is no command `:{name}`"
    help = "{suggestion}\n`:help` lists the commands"
    name: str
    known: tuple[str, ...]

    @property
    def suggestion(self) -> str:
        """The command that was meant; one of the shell, if it is none of a session."""
        if self.name in OF_FILES:
            return f"`ssdsl {self.name}` is a command of the shell: `:save FILE` writes the plan for it"
        if self.name in OF_NONE:
            return f"`ssdsl {self.name}` is a command of the shell"
        return suggest(f":{self.name}", [f":{name}" for name in self.known])


class WrongArgument(Diagnostic):
    """A command is given another word than it takes: `:show opps` where `:show` takes a view, such as `ops`."""

    code = "E0802"
    title = "`:{command}` takes {takes}"
    command: str
    takes: str  # in words
    example: str  # a line to enter instead
    given: str
    known: tuple[str, ...] = ()  # the words that it takes, where they are few

    @property
    def change(self) -> str:
        return suggest(self.given, self.known) or f"write `{self.example}`"


class NothingToUndo(Diagnostic):
    """`:undo` takes back the last statement of the plan, but the plan has none, or fewer than were asked for."""

    code = "E0803"
    title = "there is no further statement to take back"
    help = "the plan has {count} statements: `:plan` shows them"
    count: int


class FileExists(Diagnostic):
    """`:save` writes a new file; one that exists is only overwritten by `:save!`."""

    code = "E0804"
    title = "`{name}` exists already"
    help = "`:save! {name}` overwrites it"
    name: str


class CannotSave(Diagnostic):
    """The file cannot be written: its folder does not exist, for instance. What was there is untouched."""

    code = "E0805"
    title = "cannot write `{name}`: {reason}"
    help = "name a file in a folder that you may write to"
    name: str
    reason: str


class NothingSimulated(Diagnostic):
    """`:diff` compares the plan as it is with the plan as `:simulate` last saw it."""

    code = "E0806"
    title = "nothing was simulated yet"
    help = "`:simulate`, change the plan, and then `:diff`"


class NothingToRedo(Diagnostic):
    """`:redo` brings back what `:undo` took, as long as no other statement was entered since. Nothing is left to bring
    back."""

    code = "E0807"
    title = "{what}"
    help = "`:undo` takes statements back, `:plan` shows the statements"
    count: int

    @property
    def what(self) -> str:
        some = f"only {self.count} can come back" if self.count else "no statement was taken back since the last one"
        return f"there is nothing to bring back: {some}"
