"""The systems around SuperScaler: their plans at the sizes that they published, beside the fixed strategies."""

from collections.abc import Callable, Iterator, Mapping

from bench.papers.comparisons import COMPARISONS, Comparison, Settings, Strategy, pipelines, replicas


def published(settings: Mapping[int, Settings]) -> Callable[[int], Iterator[Settings]]:
    """The one setting for a number of devices that a paper published."""
    return lambda devices: iter([settings[devices]])


def _in_pipelines(devices: int) -> Iterator[Settings]:
    """Tensor parallel in groups of 8 at most, the nodes of these clusters."""
    yield from (shape for shape in pipelines(devices) if shape["T"] <= 8)


MEGATRON = Strategy("Megatron", "any_megatron", _in_pipelines, samples=(4,))
ZERO3 = Strategy("ZeRO-3", "any_zero3", replicas, samples=(4,))
ALPA_GPTS = {8: "gpt:2.6b", 16: "gpt:6.7b", 32: "gpt:15b,heads=32", 64: "gpt:39b"}

SYSTEMS = (
    Comparison(
        "alpa_gpt",
        {n: f"{model},seq=1024,batch=1024,dtype=fp16,attention=eager" for n, model in ALPA_GPTS.items()},
        1024,
        (
            Strategy(
                "Alpa",
                "alpa_gpt",
                published(
                    {
                        8: {"D": 8, "S": 3, "T": 1, "M": 128},
                        16: {"D": 16, "S": 2, "T": 4, "M": 64},
                        32: {"D": 32, "S": 4, "T": 4, "M": 128},
                        64: {"D": 64, "S": 16, "T": 4, "M": 1024},
                    }
                ),
                samples=(),
            ),
            MEGATRON,
            ZERO3,
        ),
        None,
        "gpt:tiny",
        ("gpt:2.6b,seq=1024,batch=64,dtype=fp16,attention=eager", {"D": 8, "S": 3, "T": 1, "M": 8}),
        cluster="p3x64",
    ),
)
ALL = (*COMPARISONS, *SYSTEMS)
