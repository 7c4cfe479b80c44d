"""The models of the zoo have the numbers of their papers and the graphs of the goldens; the mixture of experts routes
as its text says."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from ssdsl.model import zoo
from ssdsl.model.graph import Graph
from ssdsl.model.graph_text import graph_text
from ssdsl.model.load import load
from ssdsl.model.load.hf import complete, transformers_library
from ssdsl.model.load.hf_tasks import model_class
from ssdsl.model.zoo import PARAMETERS, ZOO
from ssdsl.model.zoo.cosmoflow import SIZES as COSMOFLOW
from ssdsl.model.zoo.family import ConfigSize, ModelSize
from ssdsl.model.zoo.moe_gpt import ALPA, MoeGpt
from ssdsl.model.zoo.nets.alphafold2 import AlphaFold2Net, EvoformerBlock
from ssdsl.model.zoo.nets.argus import Codebook, projected, sampled_plane
from ssdsl.model.zoo.nets.ga_planes import sampled
from ssdsl.model.zoo.nets.moe_gpt import Mixture
from ssdsl.model.zoo.unet3d import Unet3d
from ssdsl.model.zoo.wide_resnet import SIZES as WIDE
from ssdsl.record import replace
from tests.captured import captured

SPLITBRAIN = ("vgg:11-cifar", "vgg:16-cifar", "vgg:16")
GRAPHS = {
    "gpt": "gpt:tiny,layers=1",
    "llama": "llama:tiny,layers=1",
    "mixtral": "mixtral:tiny,layers=1",
    "moe_gpt": "moe_gpt:tiny,layers=1,every=1",
    "bert": "bert:tiny,layers=1",
    "vit": "vit:tiny,layers=1",
    "swin": "swin:tiny,depths=2,heads=2,hidden=8,image=32",
    "mbart": "mbart:tiny,layers=1",
    "t5": "t5:tiny,layers=1",
    "alphafold2": "alphafold2:tiny,blocks=1,passes=1",
    "vgg": "vgg:tiny",
    "resnet": "resnet:tiny",
    "wide_resnet": "wide_resnet:tiny",
    "unet3d": "unet3d:tiny,levels=1",
    "u_transformer": "u_transformer:tiny,levels=2",
    "cosmoflow": "cosmoflow:tiny",
    "argus": "argus:tiny",
    "ga_planes": "ga_planes:tiny,decoder=convex",
}


def graph_of(name: str) -> Graph:
    """A small model of the family, with numbers or without: these are no part of its graph."""
    return captured(GRAPHS[name], meta=True if name == "mixtral" else None)[1]


SLOW = ("argus", "ga_planes", "u_transformer")  # to capture


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in ZOO])
def test_the_captured_graphs_are_the_goldens(name: str, golden: Callable[[Path, str], None]) -> None:
    """But for the last digits of numbers that were drawn, which differ between processors."""
    text = re.sub(r"^(stored .* = torch\.float.*) sha256 \w+$", r"\1", graph_text(graph_of(name)), flags=re.M)
    golden(Path(__file__).parent / "graphs" / f"{name}.graph", text)


@pytest.mark.parametrize(
    ("spec", "millions"),
    [
        ("vgg:11", 132.86),
        ("vgg:16", 138.36),
        ("resnet:18", 11.69),
        ("resnet:50", 25.56),
        ("resnet:101", 44.55),
        ("resnet:152", 60.19),
        ("resnet:50x8", 1517.40),
        ("resnet:101x8", 2729.97),
        ("resnet:152x8", 3728.58),
        ("unet3d:256", 19.07),
        ("llama:7b", 6738.42),
        ("llama:70b", 68976.65),
        ("llama:405b", 405853.39),
        ("mixtral:8x7b", 46702.79),
        ("swin:1.8b", 1809.97),
        ("swin:5b", 4968.25),
        ("swin:10b", 10434.04),
        ("swin:27b", 27033.62),
        ("bert:24x1024", 335.17),
        ("bert:256x2048", 12959.51),
        ("bert:huge-32", 671.08),
        ("bert:huge-48", 985.92),
        ("vit:huge-32", 632.20),
        ("vit:huge-48", 947.04),
        ("gpt:1.7b", 1652.23),
        ("gpt:18.4b", 18449.76),
        ("gpt:39b", 39096.04),
        ("gpt:76.1b", 76050.74),
        ("gpt:145.6b", 145622.26),
        ("gpt:310.1b", 310130.54),
        ("gpt:530b", 529600.82),
        ("gpt:1t", 1008038.76),
        ("alphafold2:87m", 87.88),
        ("t5:3.9b", 3867.40),
        ("ga_planes:3.2m", 3.19),
        ("argus:prior", 3653.64),
        ("u_transformer:470m", 483.78),
        ("u_transformer:1b", 1088.31),
        ("u_transformer:2b", 2132.89),
    ],
)
def test_published_numbers_of_parameters(spec: str, millions: float) -> None:
    assert round(PARAMETERS[spec] / 1e6, 2) == millions


@pytest.mark.parametrize("size", [size for size in WIDE if size != "tiny"])
def test_wide_resnets_have_about_the_parameters_of_their_names(size: str) -> None:
    named = float(size[:-1]) * {"m": 1e6, "b": 1e9}[size[-1]]
    assert PARAMETERS[f"wide_resnet:{size}"] == pytest.approx(named, rel=0.03)


def test_mixtures_have_the_billions_of_their_names() -> None:
    assert round(PARAMETERS["moe_gpt:base"] / 1e9, 1) == 7.4
    for name in ALPA:
        named = float(name[:-1]) * {"m": 1e6, "b": 1e9}[name[-1]]
        assert PARAMETERS[f"moe_gpt:{name}"] == pytest.approx(named, rel=0.04)


@pytest.mark.slow
def test_parameters_are_counted(golden: Callable[[Path, str], None]) -> None:
    counted = {f"{name}:{label}": size for name, family in ZOO.items() for label, size in family.sizes.items()}
    for folder, is_example in ((Path(zoo.__file__).parent, False), (zoo.EXAMPLES, True)):
        here = {n: _count(size) for n, size in counted.items() if is_example != isinstance(size, ConfigSize)}
        golden(folder / "parameters.json", json.dumps(here, indent=0) + "\n")


def _count(size: ModelSize) -> int:
    """The parameters of a model that is built without their numbers."""
    with torch.device("meta"):
        if not isinstance(size, ConfigSize):
            return sum(p.numel() for p in size.net().parameters())
        library, architecture = transformers_library(""), size.architecture
        config = library.CONFIG_MAPPING[architecture.kind].from_dict(size.config())
        complete(config, architecture.task)
        return sum(p.numel() for p in model_class(library, config, architecture.task)(config).parameters())


@pytest.mark.parametrize("name", ["mbart", "t5"])
def test_vocabularies_fit_32_devices(name: str) -> None:
    """Interlaced pipelines cut them over all devices of the papers' cluster."""
    large = [size for key, size in ZOO[name].sizes.items() if key != "tiny"]
    assert large and all(size.numbers["vocab"] % 32 == 0 for size in large)


def test_what_a_decoder_reads_is_its_target_one_later() -> None:
    batch = load("t5:tiny").batches[0]
    assert torch.equal(batch["decoder_input_ids"][:, 1:], batch["labels"][:, :-1])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_evoformer_learns_from_its_last_pass_alone(attention: str) -> None:
    """Gradients are those of the last pass, with what the pass before it left as numbers."""
    model = load(f"alphafold2:tiny,blocks=1,batch=2,attention={attention}")
    module, batch = model.module, model.batches[0]
    assert isinstance(module, AlphaFold2Net)
    module(**batch).backward()
    found = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad()
    start = module.embed(batch["target"], batch["msa"])
    with torch.no_grad():
        state = module.trunk(*module.recycle(*start, *module.trunk(*start)))
    m, z = module.trunk(*module.recycle(*start, *state))
    scores = module.distances(z) + module.distances(z).transpose(1, 2)
    asked = batch["labels"] != -100
    masked = nn.functional.cross_entropy(module.symbols(m)[asked], batch["labels"][asked])
    apart = nn.functional.cross_entropy(scores.flatten(0, 2), batch["distances"].flatten())
    (2 * masked + 0.3 * apart).backward()
    for name, weight in module.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, msg=name)


def test_edges_of_a_triangle_multiply_as_the_paper_says() -> None:
    """Outgoing ones (algorithm 11), edge by edge: the edge i j gets i k and j k for all k."""
    torch.manual_seed(0)
    block = EvoformerBlock(ZOO["alphafold2"].sizes["tiny"])  # type: ignore[arg-type]
    z = torch.randn(1, 5, 5, 8)
    y = block.outgoing.norm(z)
    left = block.outgoing.left_gate(y).sigmoid() * block.outgoing.left(y)
    right = block.outgoing.right_gate(y).sigmoid() * block.outgoing.right(y)
    summed = torch.stack(
        [torch.stack([sum(left[:, i, k] * right[:, j, k] for k in range(5)) for j in range(5)], 1) for i in range(5)], 1
    )
    expected = z + block.outgoing.gate(y).sigmoid() * block.outgoing.out(block.outgoing.norm_sum(summed))
    torch.testing.assert_close(block.outgoing(z), expected)


def test_splitbrain_counts_convolutions_and_fully_connected_layers() -> None:
    counted = {spec: [_numel(part) for part in load(spec).module.children()] for spec in SPLITBRAIN}
    assert counted["vgg:11-cifar"] == [9_220_480, 18_923_530]
    assert counted["vgg:16-cifar"] == [14_714_688, 18_923_530]
    assert counted["vgg:16"] == [14_714_688, 123_642_856]
    assert round(18_923_530 / PARAMETERS["vgg:11-cifar"], 2) == 0.67


def _numel(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_unet_has_the_convolutions_that_its_paper_counts() -> None:
    """Theirs have a bias, ours a batch norm: a convolution's bias is one number a channel, as a shift is."""
    module = Unet3d(width=128, base=32, levels=3, channels=3, classes=3, batch=1).net()
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm3d)]
    assert _numel(module) - sum(norm.num_features for norm in norms) == 19_069_955


@pytest.mark.parametrize(("width", "channels"), [("128", 5), ("256", 6), ("512", 7)])
def test_cosmoflow_leaves_few_voxels(width: str, channels: int) -> None:
    """4 x 4 x 4 after log2(W) - 2 blocks, 2 x 2 x 2 of the largest volume: what the first linear layer takes."""
    model = load(f"cosmoflow:{width},batch=1")
    made = [m for _, m in COSMOFLOW[width].channels()]
    assert made == [16, 32, 64, 128, 256, 256, 256][:channels]
    left = model.module.blocks(model.example()["volume"])  # type: ignore[operator]
    assert left.shape == (1, 256, *[2 if width == "512" else 4] * 3)


def test_cosmoflow_has_the_parameters_of_its_paper() -> None:
    assert PARAMETERS["cosmoflow:512"] == 9_438_644


def test_batch_norm_is_an_option_of_cosmoflow() -> None:
    size = PARAMETERS["cosmoflow:tiny"]
    model = load("cosmoflow:tiny,norm=batch")
    norms = [m for m in model.module.modules() if isinstance(m, nn.BatchNorm3d)]
    assert len(norms) == 2  # two numbers a channel in place of a bias
    assert _numel(model.module) == size + sum(n.num_features for n in norms)


@pytest.mark.covering
@pytest.mark.parametrize("task", ["regression", "segmentation"])
@pytest.mark.parametrize("decoder", ["linear", "convex", "relu"])
@pytest.mark.parametrize("combine", ["concat", "sum", "product"])
def test_ga_planes_learn(combine: str, decoder: str, task: str) -> None:
    model = load(f"ga_planes:tiny,batch=512,combine={combine},decoder={decoder},task={task}")
    optimizer, batch = torch.optim.Adam(model.module.parameters(), lr=0.03), model.batches[0]
    losses = []
    for _ in range(60):
        losses.append(model.compute(batch))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.6 * losses[0]


def test_points_read_grids_by_linear_interpolation() -> None:
    """The first axis of a grid is the first coordinate; of a line, a plane and a volume."""
    ramp = torch.linspace(-1, 1, 5)
    points = torch.tensor([[0.3, -0.7, 0.1], [-1.0, 0.25, 1.0]])
    for axes in ((1,), (0, 2), (0, 1, 2)):
        for at, axis in enumerate(axes):
            shape = [5 if other == at else 1 for other in range(len(axes))]
            grid = ramp.view(1, 1, *shape).expand(1, 1, *(5 for _ in axes))
            torch.testing.assert_close(sampled(grid, points, axes)[:, 0], points[:, axis])


def test_vectors_are_replaced_by_their_nearest_codes_and_get_their_gradients() -> None:
    torch.manual_seed(0)
    book, x = Codebook(6, 2, 5), torch.randn(2, 6, 3, 4, requires_grad=True)
    y, distance = book(x)
    z = book.reduce(x.permute(0, 2, 3, 1))
    chosen = (z[..., None, :] - book.codes.weight).square().sum(-1).argmin(-1)
    codes = book.codes.weight[chosen]
    torch.testing.assert_close(y, book.expand(codes).permute(0, 3, 1, 2))
    assert distance.item() == pytest.approx(1.4 * (z - codes).square().mean().item())
    (passed,) = torch.autograd.grad(y.sum(), x)
    (through,) = torch.autograd.grad(book.expand(z).sum(), x)
    torch.testing.assert_close(passed, through)  # as if the codes were the vectors


def test_cells_of_a_plane_have_the_means_of_their_points() -> None:
    features = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    places = torch.tensor([[[-1.0, -1.0], [-0.6, -0.9], [1.0, -0.1], [0.1, 0.9]]])
    assert projected(features, places, 2).tolist() == [[[[1.5, 0.0], [4.0, 8.0]]]]
    plane = torch.arange(4.0).view(1, 1, 2, 2)
    assert sampled_plane(plane, torch.tensor([[[-0.5, 0.5], [0.0, 0.0]]])).tolist() == [[[1.0], [1.5]]]


SMALL = MoeGpt(layers=2, hidden=8, heads=2, ffn=16, experts=4, seq=12, batch=3, vocab=16)


def by_hand(mixture: Mixture, group: torch.Tensor, size: MoeGpt) -> torch.Tensor:
    """Token after token, in the order of the sequence; the second choices when all first ones are done."""
    taken, results = [0] * 4, torch.zeros_like(group)
    shares = mixture.router(group).softmax(-1)
    best = shares.argsort(dim=-1, descending=True)[:, : size.top]
    for choice in range(size.top):
        for at, token in enumerate(group):
            expert = best[at, choice]
            taken[expert] += 1
            inner = nn.functional.gelu(token @ mixture.experts.up[expert])
            gate = shares[at, expert] / (shares[at, best[at]].sum() if size.top > 1 else 1)
            if taken[expert] <= size.slots:
                results[at] += gate * (inner @ mixture.experts.down[expert])
    return results if mixture.shared is None else results + mixture.shared(group)


@pytest.mark.parametrize(
    "size",
    [
        SMALL,
        replace(SMALL, group="batch"),
        replace(SMALL, top=2, capacity_percent=75),
        replace(SMALL, top=2, shared=1, group="batch"),
    ],
    ids=["one", "one of the batch", "two", "two and a shared one"],
)
def test_tokens_go_to_the_best_experts_until_they_are_full(size: MoeGpt) -> None:
    torch.manual_seed(0)
    mixture, x = Mixture(size), torch.randn(3, 12, 8)
    nn.init.normal_(mixture.router.weight)
    groups = x if size.group == "sequence" else x.reshape(1, 36, 8)
    expected = torch.stack([by_hand(mixture, g, size) for g in groups]).reshape(x.shape)
    torch.testing.assert_close(mixture(x)[0], expected)
    if size.shared == 0:
        dropped = (expected == 0).all(-1).sum()
        assert 0 < dropped < 18  # some tokens, but not most of them


def test_of_equal_scores_the_first_expert_is_taken() -> None:
    mixture = Mixture(SMALL)
    nn.init.zeros_(mixture.router.weight)
    kept = mixture(torch.randn(3, 12, 8))[0].abs().sum(-1) > 0
    assert SMALL.slots == 4 and torch.equal(kept, torch.arange(12).expand(3, 12) < 4)  # expert 0 alone has them


def test_a_mixture_pays_for_imbalance() -> None:
    """Switch's equation 4 is 1 if all experts are as likely, and at most their number; the z-loss is of log 4."""
    mixture = Mixture(SMALL)
    nn.init.zeros_(mixture.router.weight)
    penalty = mixture(torch.randn(3, 12, 8))[1].item()
    assert penalty == pytest.approx(0.01 * 1 + 0.001 * torch.tensor(4.0).log().item() ** 2)
    nn.init.zeros_(mixture.router.weight)
    mixture.router.weight.data[2] = 100.0  # all positive tokens to one expert
    assert mixture(torch.ones(3, 12, 8))[1].item() == pytest.approx(0.01 * 4 + 0.001 * 800.0**2)


def test_mixtral_has_its_balance_loss() -> None:
    model, without = load("mixtral:tiny"), load("mixtral:tiny,balance=0")
    outputs = model.module(**model.batches[0])
    added = outputs.loss - without.compute(without.batches[0])
    assert added.item() == pytest.approx(0.02 * outputs.aux_loss.item(), rel=1e-3) and outputs.aux_loss > 1


def test_mixtral_is_captured_without_numbers() -> None:
    """Its routers' scores reach the loss by hooks, which are there before the first forward."""
    assert sum(o.kind == "histc" for o in graph_of("mixtral").operators) == 1


def test_operators_of_our_own_nets_have_their_lines() -> None:
    """Diagnostics point at them, as at a user's file."""
    assert {o.source.partition(":")[0] for o in graph_of("cosmoflow").operators} == {"cosmoflow.py"}
