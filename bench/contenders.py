"""Who is compared with whom: one row for each contender of the step benchmark."""

from dataclasses import dataclass
from enum import StrEnum


class Maker(StrEnum):
    """Who wrote the program that trains."""

    OURS = "ours"
    HAND = "hand"
    LIBRARY = "torch"


GPT = "gpt:small"
LONG = "gpt:small,seq=2048,batch=1"
VOLUME = "cosmoflow:tiny,width=64,batch=1"  # channels 8, 16, 32, 64; linear layers to 64, 32 and 4
MIXTURE = "mixtral:tiny,hidden=256,heads=8,ffn=512,layers=4,experts=8,seq=128,vocab=2048,balance=0"
LIMITS = {Maker.HAND: 1.05, Maker.LIBRARY: 1.00}  # our step may take so many times as long as theirs


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
    """A program that trains a small model: a module of `bench.peers`, or a plan to compile."""

    name: str
    strategy: str
    maker: Maker
    program: str | Plan
    processes: int = 2
    model: str = GPT
    compiles: bool = False  # a module of `bench.peers` that calls torch.compile


SINGLES = {  # of each model, whose losses all others must have
    GPT: Contender("single process", "", Maker.LIBRARY, "single", processes=1),
    MIXTURE: Contender("single process, mixture", "", Maker.LIBRARY, "single_mixture", processes=1, model=MIXTURE),
    LONG: Contender("single process, long", "", Maker.LIBRARY, "single_long", processes=1, model=LONG),
    VOLUME: Contender("single process, volumes", "", Maker.LIBRARY, "single_volume", processes=1, model=VOLUME),
}

CONTENDERS = (
    Contender("alone.ssp", "one device", Maker.OURS, Plan("examples/data_parallel.ssp", ("D=1",)), processes=1),
    Contender("the module", "one device", Maker.LIBRARY, "single", processes=1),
    Contender(
        "alone.ssp, compiled",
        "one device, compiled",
        Maker.OURS,
        Plan("examples/data_parallel.ssp", ("D=1",), "compiled"),
        processes=1,
    ),
    Contender("torch.compile", "one device, compiled", Maker.LIBRARY, "single", processes=1, compiles=True),
    Contender(
        "data_parallel.ssp, compiled",
        "data parallel x2, compiled",
        Maker.OURS,
        Plan("examples/data_parallel.ssp", ("D=2",), "compiled"),
    ),
    Contender("DDP, compiled", "data parallel x2, compiled", Maker.LIBRARY, "ddp", compiles=True),
    Contender(
        "tensor_parallel.ssp, compiled",
        "tensor parallel x2, compiled",
        Maker.OURS,
        Plan("examples/tensor_parallel.ssp", ("T=2",), "compiled"),
    ),
    Contender(
        "parallelize_module, compiled", "tensor parallel x2, compiled", Maker.LIBRARY, "dtensor_tp", compiles=True
    ),
    Contender(
        "zero.ssp, compiled", "ZeRO-3 x2, compiled", Maker.OURS, Plan("examples/zero.ssp", ("D=2", "Z=3"), "compiled")
    ),
    Contender("fully_shard, compiled", "ZeRO-3 x2, compiled", Maker.LIBRARY, "fsdp2", compiles=True),
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
