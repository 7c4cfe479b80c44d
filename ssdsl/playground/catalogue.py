"""What the page knows before it asks: models, clusters and plans to choose from, and the words of the language."""

from collections.abc import Sequence
from typing import Any

from ssdsl import __version__
from ssdsl.cluster.load import known_clusters, load_cluster
from ssdsl.lang.assets import assets_folder
from ssdsl.lang.header import VERSION
from ssdsl.model.zoo import PARAMETERS, ZOO
from ssdsl.record import Record
from ssdsl.show.charts.timeline_html import SCRIPTS, filled, keywords

MODELS = "gpt:tiny gpt:350m gpt:13b llama:7b mixtral:8x7b bert:huge-32 swin:1.8b t5:3.9b".split()
CLUSTERS = "a100x8 a100x64 a100x256 h100x8 h100x64".split()  # parts of those that come with ssdsl
MODEL, CLUSTER = "gpt:350m", "a100x64"  # for a plan that names none


class PlanExample(Record):
    """A plan that comes with ssdsl, and the options of a header with which it is shown."""

    plan: str
    options: str


EXAMPLES = (
    PlanExample("megatron", "--model gpt:350m --cluster a100x8 --set S=4 --set T=2 --set M=32"),
    PlanExample("megatron", "--model gpt:13b --cluster a100x64 --set S=8 --set T=8 --set M=64 --set R=1"),
    PlanExample("data_parallel", "--model gpt:350m --cluster a100x64 --set D=64"),
    PlanExample("zero", "--model llama:7b --cluster h100x64 --set D=64 --set M=16 --set R=1"),
    PlanExample("tensor_parallel", "--model gpt:tiny --cluster a100x8 --set T=4"),
    PlanExample("sequence_parallel", "--model bert:huge-32 --cluster a100x8 --set T=8"),
    PlanExample("half_batch", "--model gpt:tiny --cluster a100x8 --set T=4"),
    PlanExample("context_parallel", "--model gpt:tiny --cluster a100x8 --set C=4"),
    PlanExample("pipeline", "--model bert:huge-32 --cluster a100x8 --set S=8 --set M=32"),
    PlanExample("interleaved", "--model gpt:350m --cluster a100x8 --set S=4 --set V=3 --set M=32"),
    PlanExample("zero_bubble", "--model gpt:350m --cluster a100x8 --set S=8 --set M=64 --set H=2"),
    PlanExample("v_shaped", "--model gpt:350m --cluster a100x8 --set S=4 --set M=32"),
    PlanExample("breadth_first", "--model gpt:350m --cluster a100x64 --set S=4 --set V=2 --set M=8 --set D=16"),
    PlanExample("terapipe", "--model gpt:350m --cluster a100x8 --set S=8 --set M=32 --set T=2"),
    # lacks a tenth of the memory, and is told what would help
    PlanExample("experts", "--model mixtral:8x7b --cluster h100x1024 --set E=8 --set D=128"),
    PlanExample("co_shard", "--model swin:1.8b --cluster a100x256 --set D=256 --set C=4"),
    PlanExample("papers/galvatron_bert", "--model bert:huge-32 --cluster a100x8 --set P=8 --set Z=8 --set X=8"),
    PlanExample("papers/t5_interlaced", "--model t5:3.9b --cluster a100x8 --set S=8 --set M=32 --set R=1"),
)


def catalogue(commit: str, models: Sequence[str] = MODELS) -> dict[str, Any]:
    """What the page shows in its menus, with these models. `version` names this ssdsl in links."""
    examples = [example for example in EXAMPLES if example.options.split()[1] in models]
    return {
        "version": f"{__version__}+{commit}" if commit else __version__,
        "keywords": keywords(),
        "model": MODEL if MODEL in models else models[0],
        "cluster": CLUSTER,
        "models": [_model(name) for name in models],
        "clusters": [_cluster(name) for name in sorted({*known_clusters(), *CLUSTERS})],
        "examples": [_example(example) for example in examples],
    }


def text_of_example(example: PlanExample) -> str:
    """The plan under a header with its options."""
    text = (assets_folder("examples") / f"{example.plan}.ssp").read_text("utf-8")
    return f"# ssdsl {VERSION}\n# for: {example.options}\n\n{text}"


def graph_file(model: str) -> str:
    """The name of the file with a model's graph."""
    return model.replace(":", "-") + ".graph"


def timeline_page(style: str, script: str) -> str:
    """The page of a timeline without data, to be shown in a frame: the style comes after its own, the script gives it
    its data before its own scripts run."""
    page = filled("page", "timeline", SCRIPTS, {})
    page = page.replace("</style>", f"{style}</style>", 1)
    return page.replace("<script>", f"<script>\n{script}</script>\n<script>", 1)


def _model(name: str) -> dict[str, Any]:
    family, _, size = name.partition(":")
    names = [name, family] if ZOO[family].default == size else [name]
    return {
        "name": name,
        "names": names,
        "file": graph_file(name),
        "parameters": PARAMETERS[name],
        "about": ZOO[family].sizes[size].describe(),
    }


def _cluster(name: str) -> dict[str, Any]:
    cluster = load_cluster(name)
    kinds = dict.fromkeys(group.device.name for group in cluster.groups)
    return {"name": name, "devices": cluster.size, "about": ", ".join(kinds)}


def _example(example: PlanExample) -> dict[str, str]:
    name = example.plan.rpartition("/")[2]
    return {"name": f"{name}.ssp", "options": example.options, "text": text_of_example(example)}
