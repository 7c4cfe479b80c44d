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


class BadWidth(Diagnostic):
    """A width of `hf:TYPE,tp=4,ep=2,pp=2,fsdp=2`, or a size of a DistributedConfig, is no number of devices."""

    code = "E0710"
    title = "`{name}` is a number of devices, not `{value}`"
    help = "give a whole number of at least 1, as in {name}=2"
    name: str
    value: str


class WidthsUnfit(Diagnostic):
    """transformers has no mesh of these widths: experts are divided over the devices that share weights in parts and
    those of a layer, so `ep` is a multiple of `tp` and divides `fsdp` times `tp`."""

    code = "E0711"
    title = "{experts} devices cannot divide the experts with tp = {tensor} and fsdp = {shards}"
    note = "`ep` is a multiple of `tp`, and divides fsdp · tp"
    help = "{change}"
    experts: int
    tensor: int
    shards: int

    @property
    def change(self) -> str:
        """A width that fits."""
        if self.experts % self.tensor:
            return f"give ep={self.tensor}, or another multiple of tp"
        return f"give fsdp={self.experts // self.tensor}, or a smaller ep"


class ConfigWithoutType(Diagnostic):
    """The source asks for widths of a model of transformers, and does not say which.

    `hf:llama,tp=4` names the type. A DistributedConfig in JSON does not: add `"model_type": "llama"` to it, or give it
    beside the type: `hf:llama,plan=distributed.json`.
    """

    code = "E0712"
    title = "`{given}` names no type of transformers"
    note = "{reason}"
    help = 'add "model_type" to the file, or give the type beside it: hf:llama,plan=FILE.json'
    given: str
    reason: str


class DistributedUnreadable(Diagnostic):
    """A DistributedConfig cannot be read: there is no such file, or it is no JSON of keys and values."""

    code = "E0713"
    title = "cannot read the DistributedConfig `{path}`: {reason}"
    help = "give a file as `DistributedConfig.to_json_file` writes it"
    path: str
    reason: str
