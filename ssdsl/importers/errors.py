"""Mistakes in what is imported, and in what is asked of an importer."""

from ssdsl.text.diagnostic import Diagnostic


class NothingToImport(Diagnostic):
    """What was given to `ssdsl import` is neither of what it reads.

    A file is recognised by what stands in it, a command line by its flags: of Megatron-LM, Megatron-Bridge or
    Megatron-DeepSpeed; a TOML or a Python config of torchtitan; a table of PyTorch's pipelines, in CSV; a trace of
    PyTorch's profiler, in JSON; `hf:TYPE` for the plans in configs of transformers.
    """

    code = "E0700"
    title = "`{shown}` is nothing that ssdsl imports"
    note = "{reason}"
    help = "give a file, `hf:TYPE`, or a command line in quotes; `--from` says what it is: {kinds}"
    shown: str
    reason: str
    kinds: str
