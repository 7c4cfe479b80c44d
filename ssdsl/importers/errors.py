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


class TraceUnreadable(Diagnostic):
    """A trace of PyTorch's profiler is JSON with a list of events, plain or compressed: `torch.profiler.profile`, then
    `export_chrome_trace("trace.json.gz")`.

    Calls are known by the shapes of their tensors, which the profiler records only with `record_shapes=True`. Record
    some steps after the first ones, of training that is not compiled. With `repeat=1` the profiler keeps what it has
    recorded; else it forgets that when its next cycle begins:

        steps = schedule(wait=1, warmup=2, active=5, repeat=1)
        with profile(record_shapes=True, schedule=steps) as prof:
            for batch in batches:
                ...
                prof.step()
        prof.export_chrome_trace("trace.json.gz")
    """

    code = "E0709"
    title = "cannot take costs from `{file}`: {reason}"
    help = "{change}"
    file: str
    reason: str
    change: str
