"""What can be wrong with a file of costs."""

from dataclasses import dataclass

from ssdsl.text.diagnostic import Diagnostic


@dataclass(frozen=True)
class CostsUnreadable(Diagnostic):
    """A file of costs is a JSON object, as `ssdsl run PLAN --profile FILE` writes it.

    It has times of a stage for one micro-batch (`TF` forward, `TB` and `TW` the two halves of backward), of a transfer
    (`Tcomm`), or of single tasks (`tasks`: `"block0.fwd": 1.5`), in a `unit`: `s`, `ms` or `us`.
    """

    code = "E0651"
    title = "`{file}` is no file of costs: {reason}"
    help = "{hint}"
    file: str
    reason: str
    hint: str
