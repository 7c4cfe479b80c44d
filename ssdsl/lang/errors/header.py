"""Mistakes in the header of a plan."""

from ssdsl.text.diagnostic import Diagnostic


class OtherVersion(Diagnostic):
    """`# ssdsl 1` on top of a plan says in which version of the language it is written."""

    code = "E0129"
    title = "this plan is written in version {version} of the language"
    help = "install an ssdsl that reads it, or see what changed and write `# ssdsl {own}`"
    version: int
    own: int

    @property
    def instead(self) -> tuple[str, ...]:
        return (str(self.own),)


class NotAnOption(Diagnostic):
    """`# for: --model gpt:350m --cluster a100x1024 --set S=4` on top of a plan has the options with which commands read
    it. Others are given on the command line."""

    code = "E0130"
    title = "`{word}` is no option of a header"
    help = "write `# for: --model NAME --cluster NAME --set NAME=N`, each with its value"
    word: str


class ModelWouldRun(Diagnostic):
    """The header of a plan names the function of a Python file as its model. To read the model is to run the file, so
    a command asks once for each file, and does not where the command line names it."""

    code = "E0131"
    title = "`{plan}` asks for the model of `{model}`, whose file would run"
    help = "read the file, and give it: --model {model}"
    plan: str
    model: str
