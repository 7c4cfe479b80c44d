"""Who is compared with whom: one row for each contender of the step benchmark."""

from dataclasses import dataclass
from enum import StrEnum


class Maker(StrEnum):
    """Who wrote the program that trains."""

    OURS = "ours"
    HAND = "hand"
    LIBRARY = "torch"


GPT = "gpt:small"
TINY = "gpt:small,hidden=64,seq=16,vocab=256"
DROPOUT = "gpt:small,dropout=0.1"
SWIN = "swin:small"
UNET = "bench/unet.py:small"
LONG = "gpt:small,seq=2048,batch=1"
VOLUME = "cosmoflow:tiny,width=64,batch=1"  # channels 8, 16, 32, 64; linear layers to 64, 32 and 4
MUON = "gpt:small,hidden=128"  # Muon multiplies in bfloat16, which is slow on processors
MIXTURE = "mixtral:tiny,hidden=256,heads=8,ffn=512,layers=4,experts=8,seq=128,vocab=2048,balance=0"
HAND_LIMIT = 1.02  # our step may take so many times as long as a hand-written program's
TINY_LIMIT = 1.10  # where operators are so small that the time is that of Python


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan file of the repository and its parameters: what ours is compiled from."""

    path: str
    settings: tuple[str, ...] = ()
    kernels: str = "eager"

    @property
    def words(self) -> list[str]:
        """The arguments of a command of ssdsl."""
        return [
            self.path,
            "--kernels",
            self.kernels,
            *(word for setting in self.settings for word in ("--set", setting)),
        ]


@dataclass(frozen=True, slots=True)
class Contender:
    """A program that trains a small model: a module of `bench.peers`, or a plan to compile. A step of ours may take
    `limit` times as long as the library's, and `hand_limit` times as long as the hand-written one's."""

    name: str
    strategy: str
    maker: Maker
    program: str | Plan
    processes: int = 2
    model: str = GPT
    limit: float = 1.00
    hand_limit: float = HAND_LIMIT
    compiles: bool = False  # a module of `bench.peers` that calls torch.compile
    options: tuple[str, ...] = ()  # of a module of `bench.peers`

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers: each program draws others."""
        return self.model == DROPOUT


def single(model: str) -> Contender:
    """The untouched module in one process."""
    return Contender("the module", f"one device, {model}", Maker.LIBRARY, "single", 1, model)


SINGLES = {
    **{model: single(model) for model in (GPT, TINY, DROPOUT, SWIN, UNET, LONG, VOLUME, MIXTURE)},
    MUON: Contender("the module", "one device, gpt:small, Muon", Maker.LIBRARY, "single_muon", 1, MUON),
}  # all have their losses


def on_one_device(model: str) -> tuple[Contender, ...]:
    """A model alone, eager and compiled."""
    plan, strategy = "examples/data_parallel.ssp", SINGLES[model].strategy
    return (
        Contender("alone.ssp", strategy, Maker.OURS, Plan(plan, ("D=1",)), 1, model, 1.03),
        Contender("alone.ssp", f"{strategy}, compiled", Maker.OURS, Plan(plan, ("D=1",), "compiled"), 1, model, 1.03),
        Contender("torch.compile", f"{strategy}, compiled", Maker.LIBRARY, "single", 1, model, compiles=True),
    )


def on_two(
    plan: str, settings: tuple[str, ...], strategy: str, library: tuple[str, str], limit: float
) -> tuple[Contender, ...]:
    """A plan beside a library's program, both compiled."""
    strategy = f"{strategy}, compiled"
    name, program = library
    return (
        Contender(plan, strategy, Maker.OURS, Plan(f"examples/{plan}", settings, "compiled"), limit=limit),
        Contender(name, strategy, Maker.LIBRARY, program, compiles=True),
    )


def beside(
    plan: str,
    settings: tuple[str, ...],
    strategy: str,
    hand: tuple[str, str] | None = None,
    library: tuple[str, str] | None = None,
    model: str = GPT,
    limit: float = 1.00,
) -> tuple[Contender, ...]:
    """A plan beside a hand-written program and a library's, each with its name and its module of `bench.peers`."""
    others = [(Maker.HAND, hand), (Maker.LIBRARY, library)]
    ours = Plan(f"examples/{plan}", settings)
    hand_limit = TINY_LIMIT if model == TINY else HAND_LIMIT
    return (
        Contender(plan, strategy, Maker.OURS, ours, model=model, limit=limit, hand_limit=hand_limit),
        *(Contender(peer[0], strategy, maker, peer[1], model=model) for maker, peer in others if peer is not None),
    )


CONTENDERS = (
    *(contender for model in (GPT, DROPOUT, SWIN, UNET) for contender in on_one_device(model)),
    *on_two("data_parallel.ssp", ("D=2",), "data parallel x2", ("DDP", "ddp"), 1.00),
    *on_two("tensor_parallel.ssp", ("T=2",), "tensor parallel x2", ("parallelize_module", "dtensor_tp"), 0.95),
    *on_two("zero.ssp", ("D=2", "Z=3"), "ZeRO-3 x2", ("FSDP2 fully_shard", "fsdp2"), 0.90),
    *beside("data_parallel.ssp", ("D=2",), "data parallel x2", ("flat all_reduce", "hand_dp"), ("DDP", "ddp")),
    *beside(
        "tensor_parallel.ssp",
        ("T=2",),
        "tensor parallel x2",
        ("Megatron style", "hand_tp"),
        ("parallelize_module", "dtensor_tp"),
    ),
    *beside("sequence_parallel.ssp", ("T=2",), "tensor and sequence parallel x2", ("Megatron style", "hand_tp_sp")),
    *beside(
        "pipeline.ssp",
        ("S=2", "M=4"),
        "pipeline x2, 1F1B",
        ("isend and irecv", "hand_1f1b"),
        ("Schedule1F1B", "pipelining_1f1b"),
    ),
    *beside(
        "interleaved.ssp",
        ("S=2", "M=4"),
        "pipeline x2, interleaved 1F1B",
        ("isend and irecv", "hand_interleaved"),
        ("ScheduleInterleaved1F1B", "pipelining_interleaved"),
    ),
    *beside(
        "zero_bubble.ssp", ("S=2", "M=4"), "pipeline x2, ZB-H1", ("weights' gradients put off", "hand_zero_bubble")
    ),
    *beside("v_shaped.ssp", ("S=2", "M=4"), "pipeline x2, ZB-V", library=("ScheduleZBVZeroBubble", "pipelining_zbv")),
    *beside("zero.ssp", ("D=2", "Z=2"), "ZeRO-2 x2", ("reduce_scatter of layers", "hand_zero2")),
    *beside(
        "zero.ssp",
        ("D=2", "Z=3"),
        "ZeRO-3 x2",
        ("a layer gathered ahead", "hand_zero3"),
        ("FSDP2 fully_shard", "fsdp2"),
    ),
    *beside("context_parallel.ssp", ("C=2",), "ring x2", ("fused kernel, isend", "hand_ring"), model=LONG),
    *beside("spatial.ssp", ("D=2", "H=1"), "halo x2", ("planes at the cut", "hand_halo"), model=VOLUME),
    *beside("experts.ssp", ("E=2",), "experts x2", ("two all_to_alls", "hand_experts"), model=MIXTURE),
    Contender("muon.ssp", "Muon, data parallel x2", Maker.OURS, "engine_muon", model=MUON),
    Contender("each matrix on one rank", "Muon, data parallel x2", Maker.HAND, "hand_muon", model=MUON),
    *beside("data_parallel.ssp", ("D=2",), "tiny, data parallel x2", ("flat all_reduce", "hand_dp"), model=TINY),
    *beside("tensor_parallel.ssp", ("T=2",), "tiny, tensor parallel x2", ("Megatron style", "hand_tp"), model=TINY),
    *beside("pipeline.ssp", ("S=2", "M=4"), "tiny, pipeline x2, 1F1B", ("isend and irecv", "hand_1f1b"), model=TINY),
)


def of(strategy: str) -> tuple[Contender, ...]:
    """The eager contenders of a strategy."""
    return tuple(contender for contender in CONTENDERS if contender.strategy == strategy)


def ddp(name: str, *options: str) -> Contender:
    """DDP with other options."""
    return Contender(f"DDP, {name}", "data parallel x2", Maker.LIBRARY, "ddp", options=options)


LINKED = (  # over an emulated network; the first program of a library is the one that ours is compared with
    of("data parallel x2")[0],
    ddp("its defaults", "--defaults"),
    *(ddp(f"buckets of {size} MB", "--bucket-mb", size) for size in ("1", "2", "4", "8")),
    *of("ZeRO-3 x2"),
    *of("pipeline x2, 1F1B"),
    *of("ring x2"),
    *of("experts x2"),
    *of("halo x2"),
)
