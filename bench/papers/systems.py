"""The systems around SuperScaler: their plans at the sizes that they published, beside the fixed strategies."""

from collections.abc import Iterator, Mapping

from bench.papers.comparisons import (
    COMPARISONS,
    MICRO_BATCHES,
    RECOMPUTED,
    Comparison,
    Settings,
    Strategy,
    in_one_stage,
    in_stages,
    pipelines,
    replicas,
)
from ssdsl.record import replace


def _published(name: str, plan: str, settings: Mapping[int, Settings]) -> Strategy:
    """A plan in the one setting for a number of devices that its paper published."""
    return Strategy(name, plan, lambda devices: iter([settings[devices]]), samples=())


def _in_pipelines(devices: int) -> Iterator[Settings]:
    """Tensor parallel in groups of 8 at most, the nodes of these clusters."""
    yield from (shape for shape in pipelines(devices) if shape["T"] <= 8)


def _narrow(devices: int) -> Iterator[Settings]:
    """Tensor parallel in groups of 4 at most, in pipelines of no more than 8 stages."""
    yield from (shape for shape in pipelines(devices) if shape["T"] <= 4 and shape["S"] <= 8)


def _experts(devices: int) -> Iterator[Settings]:
    """One stage, with the experts of a layer over 8 or 16 devices: 27b has 48."""
    yield from ({"D": devices // n, "E": n, "S": 1} for n in (8, 16))


def _by_layer(devices: int) -> Iterator[Settings]:
    """Of 32 layers, most are of one strategy."""
    shares = ((0, 32, 0), (8, 24, 0), (16, 16, 0), (16, 0, 16), (8, 8, 8), (0, 16, 16))
    yield from ({"P": p, "Z": z, "X": x} for p, z, x in shares)


def _blocks(devices: int) -> Iterator[Settings]:
    """A sample in blocks that are as near to cubes as powers of two are."""
    depth, height, width = {512: (2, 2, 2), 1024: (4, 2, 2), 2048: (4, 4, 2)}[devices]
    yield {"B": 64, "D": depth, "H": height, "W": width}


def _codes(devices: int) -> Iterator[Settings]:
    """Two, four or eight devices divide codes, queries and planes."""
    yield from ({"D": devices // n, "T": n} for n in (2, 4, 8))


def _volumes(devices: int) -> Iterator[Settings]:
    """Two, four or eight devices divide the planes and the volume."""
    yield from ({"D": devices // n, "X": n} for n in (2, 4, 8))


MEGATRON = Strategy("Megatron", "any_megatron", _in_pipelines, samples=(4,))
ZERO3 = Strategy("ZeRO-3", "any_zero3", replicas, samples=(4,))
ALPA_GPTS = {8: "gpt:2.6b", 16: "gpt:6.7b", 32: "gpt:15b,heads=32", 64: "gpt:39b"}
DEPTHS: dict[int, Settings] = {n: {"B": 64, "D": n // 64} for n in (512, 1024, 2048)}

SYSTEMS = (
    Comparison(
        "alpa_gpt",
        {n: f"{model},seq=1024,batch=1024,dtype=fp16,attention=eager" for n, model in ALPA_GPTS.items()},
        1024,
        (
            _published(
                "Alpa",
                "alpa_gpt",
                {
                    8: {"D": 8, "S": 3, "T": 1, "M": 128},
                    16: {"D": 16, "S": 2, "T": 4, "M": 64},
                    32: {"D": 32, "S": 4, "T": 4, "M": 128},
                    64: {"D": 64, "S": 16, "T": 4, "M": 1024},
                },
            ),
            MEGATRON,
            ZERO3,
        ),
        ("sketch_stages",),
        "gpt:tiny",
        ("gpt:2.6b,seq=1024,batch=64,dtype=fp16,attention=eager", {"D": 8, "S": 3, "T": 1, "M": 8}),
        "p3x64",
    ),
    Comparison(
        "alpa_moe",
        {32: "moe_gpt:27b,dtype=fp16"},
        1024,
        (
            _published("Alpa", "alpa_moe", {32: {"D": 1, "E": 4, "S": 8, "M": 256, "R": 1}}),
            Strategy("experts", "alpa_moe", _experts, replicas=("D", "E"), samples=(1, 4)),
            MEGATRON,
            ZERO3,
        ),
        ("alpa_moe",),
        "moe_gpt:tiny",
        ("moe_gpt:27b,dtype=fp16,batch=64", {"D": 1, "E": 4, "S": 8, "M": 16, "R": 1}),
        "p3x32",
    ),
    Comparison(
        "alpa_wide_resnet",
        {16: "wide_resnet:4b,statistics=192"},
        1536,
        (
            _published("Alpa", "alpa_wide_resnet", {16: {"W": 4, "T": 4, "M": 24}}),
            replace(MEGATRON, samples=(8, 16)),
            replace(ZERO3, samples=(8, 16)),
        ),
        ("sketch_stages",),
        "wide_resnet:tiny,statistics=4",
        ("wide_resnet:4b,batch=512,statistics=64", {"W": 4, "T": 4, "M": 8}),
        "p3x16",
    ),
    Comparison(
        "galvatron_bert",
        {8: "bert:huge-32,batch=64"},
        64,
        (
            Strategy("a strategy a layer", "galvatron_bert", _by_layer, RECOMPUTED, replicas=(), samples=(8, 32)),
            replace(MEGATRON, samples=(1, 4), choices=RECOMPUTED),
            replace(ZERO3, samples=(4, 8), choices=RECOMPUTED),
        ),
        ("galvatron_bert", "sketch_stages"),
        "bert:tiny,layers=4",
        cluster="bench/papers/rtxtitan_8gb.toml",
    ),
    Comparison(
        "rannc_resnet",
        {32: "resnet:152x8,statistics=64"},
        256,
        (
            _published("RaNNC", "rannc_resnet", {32: {"W": 8, "M": 4}}),
            _published("a pipeline alone", "any_megatron", {32: {"D": 1, "T": 1, "S": 32, "M": 64, "R": 1}}),
            replace(MEGATRON, shapes=_narrow),
            ZERO3,
        ),
        ("sketch_stages",),
        "resnet:tiny,statistics=8",
        ("resnet:152x8,statistics=64", {"W": 8, "M": 4}),
    ),
    Comparison(
        "cross_mesh_gpt",
        {8: "gpt:2.6b,seq=1024,batch=1024,dtype=fp16,attention=eager"},
        1024,
        (
            _published("eager 1F1B", "cross_mesh_gpt", {8: {"D": 2, "T": 2, "S": 2, "M": 128, "E": 1}}),
            _published("1F1B", "cross_mesh_gpt", {8: {"D": 2, "T": 2, "S": 2, "M": 128, "E": 0}}),
            MEGATRON,
            ZERO3,
        ),
        ("cross_mesh_gpt", "sketch_stages"),
        "gpt:tiny",
        ("gpt:2.6b,seq=1024,batch=64,dtype=fp16,attention=eager", {"D": 2, "T": 2, "S": 2, "M": 8, "E": 1}),
        "p38x8",
    ),
    Comparison(
        "cross_mesh_u_transformer",
        {8: "u_transformer:1b,dtype=fp16"},
        2048,
        (
            _published("eager 1F1B", "cross_mesh_u_transformer", {8: {"D": 4, "T": 1, "M": 128, "E": 1}}),
            _published("1F1B", "cross_mesh_u_transformer", {8: {"D": 4, "T": 1, "M": 128, "E": 0}}),
            replace(MEGATRON, shapes=_narrow, choices=RECOMPUTED),
            replace(ZERO3, samples=(16, 64), choices=RECOMPUTED),
        ),
        ("cross_mesh_u_transformer", "sketch_stages"),
        "u_transformer:tiny",
        ("u_transformer:1b,dtype=fp16,batch=128", {"D": 4, "T": 1, "M": 8, "E": 1}),
        "p38x8",
    ),
    *(
        Comparison(
            f"splitbrain_{name}",
            {32: model},
            128,
            tuple(_published(f"k = {k}", "splitbrain", {32: {"N": 32, "G": k}}) for k in (32, 16, 8, 4, 2, 1)),
            ("splitbrain",),
            "vgg:tiny",
            cluster="v100x32",
        )
        for name, model in (("vgg_11", "vgg:11-cifar"), ("vgg_16", "vgg:16-cifar"))
    ),
    Comparison(
        "spatial_cosmoflow",
        dict.fromkeys(DEPTHS, "cosmoflow:512,batch=64"),
        64,
        (
            _published(
                "parts of the depth", "spatial_cosmoflow", {n: {"B": 64, "D": n // 64} for n in (512, 1024, 2048)}
            ),
            Strategy("depth, height and width", "spatial_cosmoflow", _blocks, samples=()),
        ),
        ("spatial_cosmoflow",),
        "cosmoflow:tiny",
        cluster="lassenx2048",
    ),
    Comparison(
        "ga_planes_points",
        {8: "ga_planes:3.2m,batch=1048576"},
        1048576,
        (
            Strategy("points", "ga_planes_points", replicas, samples=(1 << 17,)),
            Strategy("planes and volume", "ga_planes_volume", _volumes, samples=()),
            replace(ZERO3, samples=(1 << 17,), choices=({"R": 0},)),
        ),
        ("ga_planes_points", "ga_planes_volume"),
        "ga_planes:tiny",
        cluster="v100x8",
    ),
    *(
        Comparison(
            f"ga_planes_{name}",
            {8: model},
            points,
            (
                Strategy("planes and volume", "ga_planes_volume", _volumes, samples=()),
                Strategy("points", "ga_planes_points", replicas, samples=(points // 8,)),
                replace(ZERO3, samples=(points // 8,), choices=({"R": 0},)),
            ),
            ("ga_planes_points", "ga_planes_volume"),
            "ga_planes:tiny",
            cluster="v100x8",
        )
        for name, model, points in (
            ("volume", "ga_planes:3.2m", 4096),
            ("large_volume", "ga_planes:3.2m,line=1024,plane=1024,volume=256,batch=32768", 32768),
        )
    ),
    Comparison(
        "argus_codebook",
        {8: "argus:codebook"},
        64,
        (
            Strategy("codes and queries", "argus_codebook", _codes),
            replace(ZERO3, choices=({"R": 0},), samples=MICRO_BATCHES),
        ),
        ("argus_codebook",),
        "argus:tiny",
        cluster="a100x8",
    ),
    Comparison(
        "argus_pipeline",
        {64: "argus:prior,dtype=bf16"},
        256,
        (
            Strategy("pipeline", "argus_pipeline", in_stages, samples=(1, 4)),
            Strategy("one stage", "argus_pipeline", in_one_stage, samples=(1, 4)),
            replace(ZERO3, samples=MICRO_BATCHES),
        ),
        ("argus_pipeline",),
        "argus:tiny-prior",
        ("argus:prior,dtype=bf16", {"D": 8, "T": 1, "S": 8, "M": 16}),
        "a100x64",
    ),
)
ALL = (*COMPARISONS, *SYSTEMS)
