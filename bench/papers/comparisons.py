"""What is compared: a row per plan, with the models that it trains and the strategies that it stands beside.

To add a plan of a paper: its file in `examples/papers`, a `Comparison` here with a `Strategy` for it, and the marks of
its blocks in bench/results/papers.md; `python -m bench papers` names the mark that is missing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

Settings = Mapping[str, int]  # of a plan's params

IN_NODE = 16  # devices; a wider tensor parallelism leaves the node, which no system does
MICRO_BATCHES = (1, 2, 4)  # samples; the plan's own unit where a device has no whole sample


@dataclass(frozen=True, slots=True)
class Strategy:
    """A plan and the settings in which it is tried.

    `shapes` are its ways to lay out a number of devices. `choices` go from the least memory to the most: where one does
    not fit, those behind it do not either. `replicas` are the params that divide the batch; M, the number of
    micro-batches, divides the rest into parts of one of `samples`. Without `samples`, shapes say all.
    """

    name: str
    plan: str
    shapes: Callable[[int], Iterator[Settings]]
    choices: tuple[Settings, ...] = ({},)
    replicas: tuple[str, ...] = ("D",)
    samples: tuple[int, ...] = MICRO_BATCHES

    def micro_batches(self, shape: Settings, batch: int) -> Iterator[Settings]:
        """M for each size of a micro-batch that divides the batch."""
        if not self.samples:
            yield {}
        each, left = divmod(batch, prod(shape.get(name, 1) for name in self.replicas))
        if left == 0:
            yield from ({"M": each // samples} for samples in self.samples if each % samples == 0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A paper's plan, the first of `strategies`, and what it is compared with; `models` by the number of devices.
    `sketches` are plans that leave to `ssdsl search` what the paper's decides; they are searched together.

    `small` is a model on which its plans are checked, `drawn` a model of the paper's with few micro-batches, and the
    settings of its picture, if it has one.
    """

    name: str
    models: Mapping[int, str]
    batch: int
    strategies: tuple[Strategy, ...]
    sketches: tuple[str, ...]
    small: str
    drawn: tuple[str, Settings] | None = None
    cluster: str = "v100x32"


# -- ways to lay out devices ------------------------------------------------------------------------------------------


def _powers(most: int) -> Iterator[int]:
    yield from (1 << n for n in range(most.bit_length()) if 1 << n <= most)


def pipelines(devices: int) -> Iterator[Settings]:
    """Tensor parallel in stages, stages in a pipeline, pipelines in parallel: all powers of two."""
    for tensor in _powers(min(devices, IN_NODE)):
        for stages in _powers(devices // tensor):
            yield {"D": devices // tensor // stages, "T": tensor, "S": stages}


def in_stages(devices: int) -> Iterator[Settings]:
    """Pipelines of at least two stages."""
    yield from (shape for shape in pipelines(devices) if shape["S"] > 1)


def in_one_stage(devices: int) -> Iterator[Settings]:
    yield from (shape for shape in pipelines(devices) if shape["S"] == 1)


def replicas(devices: int) -> Iterator[Settings]:
    yield {"D": devices}


def _groups(devices: int) -> Iterator[Settings]:
    """Replicas of some devices, which share the batch of a replica or its operators."""
    for tensor in _powers(min(devices, IN_NODE)):
        if tensor > 1:
            yield from ({"D": devices // tensor, "T": tensor, "B": parts} for parts in (1, tensor))


def _swin_parts(devices: int) -> Iterator[Settings]:
    """As many parts on a device as in the paper, which has pipelines 2, 4, 4 or 8 devices wide; in wider ones also as
    many parts in all."""
    width, parts = {4: (2, 4), 8: (4, 6), 16: (4, 4), 32: (8, 4)}[devices]
    for shape in pipelines(devices):
        fewer = width * parts // shape["T"]
        yield from ({**shape, "C": count} for count in dict.fromkeys((parts, fewer)) if 1 < count <= parts)


def _in_parts(*counts: int) -> Callable[[int], Iterator[Settings]]:
    """Pipelines of layers in so many parts on a device."""
    return lambda devices: ({**shape, "C": parts} for shape in pipelines(devices) for parts in counts)


def _four_stages(devices: int) -> Iterator[Settings]:
    """Pipelines of four stages, as in the paper."""
    yield from (shape for shape in pipelines(devices) if shape["S"] == 4)


def _proteins(devices: int) -> Iterator[Settings]:
    """Groups that share a protein, in stages."""
    yield from ({"D": shape["D"], "S": shape["S"], "A": shape["T"]} for shape in in_stages(devices))


def _whole_proteins(devices: int) -> Iterator[Settings]:
    yield from ({"D": shape["D"], "A": shape["T"]} for shape in in_one_stage(devices) if shape["T"] > 1)


# -- the comparisons --------------------------------------------------------------------------------------------------

RECOMPUTED = ({"R": 1}, {"R": 0})


def _interlaced(model: str) -> tuple[Strategy, ...]:
    """Of models whose embeddings are large: the plans of mBART and of T5 differ in their names alone."""
    return (
        Strategy("interlaced", f"{model}_interlaced", _four_stages, RECOMPUTED),
        Strategy("1F1B", f"{model}_megatron", in_stages, RECOMPUTED),
        Strategy("tensor parallel", f"{model}_megatron", in_one_stage, RECOMPUTED),
        Strategy("ZeRO-3", f"{model}_zero3", replicas, RECOMPUTED),
    )


SWINS = {4: "1.8b", 8: "5b", 16: "10b", 32: "27b"}
OF_SWIN = (
    Strategy("co-shard", "swin_co_shard", _swin_parts, RECOMPUTED),
    Strategy("Megatron", "swin_megatron", pipelines, RECOMPUTED),
    Strategy("ZeRO-3", "swin_zero3", replicas, RECOMPUTED),
    Strategy("SPMD", "swin_spmd", _groups, RECOMPUTED, replicas=("D", "B")),
)

GPTS = {4: "1.3b", 8: "2.6b", 16: "6.7b", 32: "15b"}


def _of_gpt(*parts: int) -> tuple[Strategy, ...]:
    return (
        Strategy("co-shard", "gpt_co_shard", _in_parts(*parts)),
        Strategy("Megatron", "gpt_megatron", pipelines, ({"R": 1, "P": 1}, {"R": 2, "P": 1}, {"R": 0, "P": 1})),
        Strategy("ZeRO-3", "gpt_zero3", replicas, RECOMPUTED),
    )


COMPARISONS = (
    Comparison(
        "swin",
        {devices: f"swin:{size},dtype=fp16,attention=eager" for devices, size in SWINS.items()},
        256,
        OF_SWIN,
        ("sketch_large_images",),
        "swin:small",
        ("swin:1.8b,dtype=fp16,attention=eager,batch=8", {"T": 2, "C": 4, "S": 2, "M": 8, "R": 1}),
    ),
    Comparison(
        "swin_fused",
        {devices: f"swin:{SWINS[devices]},dtype=fp16" for devices in (4, 8)},
        256,
        OF_SWIN,
        ("sketch_large_images",),
        "swin:small",
    ),
    Comparison(
        "gpt",
        {devices: f"gpt:{size}-16k,dtype=fp16,attention=eager" for devices, size in GPTS.items()},
        256,
        _of_gpt(4, 5, 8),
        ("sketch_long_sequences",),
        "gpt:tiny",
        ("gpt:1.3b-16k,dtype=fp16,attention=eager,batch=8", {"S": 4, "C": 4, "M": 8}),
    ),
    Comparison(
        "gpt_fused",
        {devices: f"gpt:{GPTS[devices]}-16k,dtype=fp16" for devices in (4, 8)},
        256,
        _of_gpt(2, 4),
        ("sketch_long_sequences",),
        "gpt:tiny",
    ),
    Comparison(
        "mbart",
        dict.fromkeys((4, 8, 16, 32), "mbart:2b,dtype=fp16"),
        256,
        _interlaced("mbart"),
        ("sketch_embeddings",),
        "mbart:tiny",
        ("mbart:2b,dtype=fp16,batch=8", {"S": 4, "T": 1, "M": 8, "R": 1}),
    ),
    Comparison(
        "t5",
        {devices: f"t5:{size},dtype=bf16" for devices, size in ((4, "3.9b"), (8, "12b"), (16, "21b"), (32, "46b"))},
        256,
        _interlaced("t5"),
        ("sketch_embeddings",),
        "t5:tiny",
        ("t5:3.9b,dtype=bf16,batch=8", {"S": 4, "T": 1, "M": 8, "R": 1}),
    ),
    Comparison(
        "alphafold2",
        {n: f"alphafold2:{size},dtype=fp16" for n, size in ((4, "87m"), (8, "1b"), (16, "2.6b"), (32, "3.5b"))},
        128,
        (
            Strategy("3F1B", "alphafold2_3f1b", _proteins, RECOMPUTED),
            Strategy("one at a time", "alphafold2_in_turn", _proteins, RECOMPUTED),
            Strategy("DAP", "alphafold2_dap", _whole_proteins, RECOMPUTED),
            Strategy("ZeRO-2", "alphafold2_zero2", replicas, RECOMPUTED),
        ),
        ("sketch_passes",),
        "alphafold2:tiny",
        ("alphafold2:87m,dtype=fp16,batch=8", {"S": 4, "A": 1, "M": 8, "R": 1}),
    ),
)
