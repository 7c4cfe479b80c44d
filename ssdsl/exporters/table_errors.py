"""Plans that have no table of a pipeline."""

from ssdsl.text.diagnostic import Diagnostic


class NotATable(Diagnostic):
    """`ssdsl export --csv` writes the order of a pipeline whose devices each run whole stages, once for each
    micro-batch: what PyTorch's pipelines take as a table. Data, tensor and context parallelism have no place in it, and
    may be there; other parts in time, stages that are no chain and a device without stages may not."""

    code = "E0729"
    title = "this plan has no table of a pipeline: {reason}"
    help = "{change}"
    reason: str
    change: str
