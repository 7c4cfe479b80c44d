"""Who is compared with whom: one row for each contender of the step benchmark."""

from dataclasses import dataclass
from enum import StrEnum


class Maker(StrEnum):
    """Who wrote the program that trains."""

    OURS = "ours"
    HAND = "hand"
    LIBRARY = "torch"


GPT = "gpt:small"
DROPOUT = "gpt:small,dropout=0.1"
SWIN = "swin:small"
UNET = "bench/unet.py:small"
LONG = "gpt:small,seq=2048,batch=1"
VOLUME = "cosmoflow:tiny,width=64,batch=1"  # channels 8, 16, 32, 64; linear layers to 64, 32 and 4
MIXTURE = "mixtral:tiny,hidden=256,heads=8,ffn=512,layers=4,experts=8,seq=128,vocab=2048,balance=0"
HAND_LIMIT = 1.05  # our step may take so many times as long as a hand-written program's


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
    `limit` times as long as the library's."""

    name: str
    strategy: str
    maker: Maker
    program: str | Plan
    processes: int = 2
    model: str = GPT
    limit: float = 1.00
    compiles: bool = False  # a module of `bench.peers` that calls torch.compile
    options: tuple[str, ...] = ()  # of a module of `bench.peers`

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers: each program draws others."""
        return self.model == DROPOUT


def single(model: str) -> Contender:
    """The untouched module in one process."""
    return Contender("the module", f"one device, {model}", Maker.LIBRARY, "single", 1, model)


SINGLES = {model: single(model) for model in (GPT, DROPOUT, SWIN, UNET, LONG, VOLUME, MIXTURE)}  # all have their losses


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


CONTENDERS = (
    *(contender for model in (GPT, DROPOUT, SWIN, UNET) for contender in on_one_device(model)),
    *on_two("data_parallel.ssp", ("D=2",), "data parallel x2", ("DDP", "ddp"), 1.00),
    *on_two("tensor_parallel.ssp", ("T=2",), "tensor parallel x2", ("parallelize_module", "dtensor_tp"), 0.95),
    *on_two("zero.ssp", ("D=2", "Z=3"), "ZeRO-3 x2", ("FSDP2 fully_shard", "fsdp2"), 0.90),
    Contender("data_parallel.ssp", "data parallel x2", Maker.OURS, Plan("examples/data_parallel.ssp", ("D=2",))),
    Contender("flat all_reduce", "data parallel x2", Maker.HAND, "hand_dp"),
    Contender("DDP", "data parallel x2", Maker.LIBRARY, "ddp"),
    Contender("tensor_parallel.ssp", "tensor parallel x2", Maker.OURS, Plan("examples/tensor_parallel.ssp", ("T=2",))),
    Contender("Megatron style", "tensor parallel x2", Maker.HAND, "hand_tp"),
    Contender("parallelize_module", "tensor parallel x2", Maker.LIBRARY, "dtensor_tp"),
    Contender("pipeline.ssp", "pipeline x2, 1F1B", Maker.OURS, Plan("examples/pipeline.ssp", ("S=2", "M=4"))),
    Contender("isend and irecv", "pipeline x2, 1F1B", Maker.HAND, "hand_1f1b"),
    Contender("Schedule1F1B", "pipeline x2, 1F1B", Maker.LIBRARY, "pipelining_1f1b"),
    Contender("zero.ssp", "ZeRO-3 x2", Maker.OURS, Plan("examples/zero.ssp", ("D=2", "Z=3"))),
    Contender("FSDP2 fully_shard", "ZeRO-3 x2", Maker.LIBRARY, "fsdp2"),
    Contender(
        "context_parallel.ssp", "ring x2", Maker.OURS, Plan("examples/context_parallel.ssp", ("C=2",)), model=LONG
    ),
    Contender("fused kernel, isend", "ring x2", Maker.HAND, "hand_ring", model=LONG),
    Contender("spatial.ssp", "halo x2", Maker.OURS, Plan("examples/spatial.ssp", ("D=2", "H=1")), model=VOLUME),
    Contender("planes at the cut", "halo x2", Maker.HAND, "hand_halo", model=VOLUME),
    Contender("experts.ssp", "experts x2", Maker.OURS, Plan("examples/experts.ssp", ("E=2",)), model=MIXTURE),
    Contender("two all_to_alls", "experts x2", Maker.HAND, "hand_experts", model=MIXTURE),
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
