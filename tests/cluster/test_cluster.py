"""Devices, levels and links: which link a group of ranks spans, what a ring over it sees, and the known clusters."""

import pickle
from pathlib import Path
from time import process_time

import pytest

from ssdsl.cluster.cluster import Cluster
from ssdsl.cluster.link import Link
from ssdsl.cluster.load import known_clusters, load_cluster
from ssdsl.record import replace
from ssdsl.text.diagnostic import PlanError
from ssdsl.text.render import render

SIZES = {
    "a100x1024": 1024,
    "fusion48": 48,
    "h100x1024": 1024,
    "h200x8": 8,
    "laptop": None,
    "lassenx256": 256,
    "p38x32": 32,
    "p3x64": 64,
    "rtxtitanx8": 8,
    "two_sites": 64,
    "v100x32": 32,
}


@pytest.fixture(autouse=True)
def no_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("name", known_clusters())
def test_known(name: str) -> None:
    cluster = load_cluster(name)
    assert SIZES[name] in (cluster.size, None)
    assert cluster == load_cluster(name) and hash(cluster) == hash(load_cluster(name))
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    for group in cluster.groups:
        assert 1e10 < group.device.peak_flops("float32") < 1e15
        assert 1e9 < group.device.achievable_bandwidth() < 1e13


def test_all_are_tested() -> None:
    assert set(known_clusters()) == set(SIZES)


def test_a_missing_dtype_is_computed_in_a_wider_one() -> None:
    v100, h100 = load_cluster("v100x32").device(0), load_cluster("h100x1024").device(0)
    assert v100.peak_flops("bfloat16") == v100.peak_flops("float32") == 15.7e12
    assert v100.peak_flops("torch.float16") == 125e12
    assert v100.peak_flops("float8_e4m3fn") == 125e12
    assert h100.peak_flops("float8_e4m3fn") == pytest.approx(1978.9e12)
    assert h100.peak_flops("int64") == h100.peak_flops("float32")


def test_any_number_of_known_devices() -> None:
    """Whole nodes, or a part of one."""
    assert [load_cluster(n).size for n in ("a100x3072", "a100x4", "v100x16", "v100x40")] == [3072, 4, 16, 48]
    large, known = load_cluster("a100x3072"), load_cluster("a100x1024")
    assert large.name == "a100x3072" and large.device(0) == known.device(0)
    assert large.link((0, 3071)) == known.link((0, 1023)) and large.link((0, 7)) == known.link((0, 7))
    for name in ("a100x0", "a10x8", "laptopx2", "two_sitesx8"):
        with pytest.raises(PlanError) as raised:
            load_cluster(name)
        assert [d.code for d in raised.value.diagnostics] == ["E0601"]


def test_flags_behind_commas() -> None:
    plain = load_cluster("h200x4,routes=false")
    assert (plain.name, plain.size, plain.routes) == ("h200x4,routes=false", 4, False)
    for name, code in (("h200x8,rotes=true", "E0604"), ("h200x8,routes=1", "E0606"), ("h200x8,routes", "E0603")):
        with pytest.raises(PlanError) as raised:
            load_cluster(name)
        assert [d.code for d in raised.value.diagnostics] == [code]
    with pytest.raises(PlanError, match="E0604") as raised:
        load_cluster("h200x8,fuse=true")  # once a key of clusters
    assert "--kernels fused" in render(raised.value.diagnostics[0])


def test_an_adapter_is_shared_by_those_that_send() -> None:
    """Two V100 of a DGX-2 share an adapter; the 8 of a p3.16xlarge one of 25 Gb/s."""
    cluster = load_cluster("p3x64")
    alone, two = (cluster.link((0, 8), busy) for busy in ((0, 8), (0, 1, 8, 9)))
    everyone = cluster.link((0, 8), tuple(range(64)))
    assert alone.bandwidth == 8 * everyone.bandwidth == 2.8e9 and two.bandwidth == 1.4e9
    assert cluster.link((0, 8)) == everyone and cluster.link((0, 7), (0, 7)) == cluster.link((0, 7))
    one_ring = cluster.ring(tuple(range(16)), tuple(range(16)))
    eight_rings = cluster.ring((0, 8), tuple(range(16)))
    assert one_ring.bandwidth == pytest.approx(8 * eight_rings.bandwidth) == 2.8e9
    assert cluster.collective_time("all_reduce", 1e9, (0, 8), (0, 8)) == pytest.approx(1e9 / 2.8e9, rel=0.01)


def test_levels_of_equal_nodes() -> None:
    cluster = load_cluster("a100x1024")
    assert cluster.level((0, 7)) == "node" and cluster.level((7, 8)) == "cluster" and cluster.level((5,)) == "node"
    assert cluster.link(tuple(range(8))).bandwidth == 235e9
    assert cluster.link(tuple(range(16))).bandwidth == cluster.link((0, 8)).bandwidth == 22.5e9


def test_levels_of_unlike_sites() -> None:
    cluster = load_cluster("two_sites")
    assert [cluster.device(rank).name[:4] for rank in (0, 31, 32, 63)] == ["A100", "A100", "V100", "V100"]
    assert [cluster.level(ranks) for ranks in ((0, 7), (7, 8), (32, 47), (47, 48), (31, 32))] == [
        "node",
        "site",
        "node",
        "site",
        "wide area",
    ]
    assert cluster.link((32, 33)).bandwidth == 120e9 and cluster.link((32, 48)).bandwidth == 5.6e9
    assert cluster.link((0, 1, 40)).latency == 0.03


def test_a_ring_uses_the_links_of_all_its_ranks() -> None:
    cluster = load_cluster("a100x1024")
    assert cluster.ring((0, 8)).bandwidth == 22.5e9
    assert cluster.ring((0, 1, 8, 9)).bandwidth == 45e9
    assert cluster.ring((0, 1, 2, 8)).bandwidth == 22.5e9
    assert cluster.ring(tuple(range(16))).bandwidth == 8 * 22.5e9
    assert cluster.ring(tuple(range(16))).latency == pytest.approx((14 * 1.9e-6 + 4e-6) / 15)
    assert cluster.ring((0, 1)).latency == pytest.approx(1.9e-6)


def test_times() -> None:
    cluster = load_cluster("a100x1024")
    assert sum(cluster.exchange([((0, 1), 235e9)])) == pytest.approx(1, rel=1e-3)
    assert sum(cluster.exchange([((3, 3), 1e9)])) == cluster.collective_time("all_reduce", 1e9, (3,)) == 0
    both = tuple(range(16))
    reduced = cluster.collective_time("all_reduce", 1e9, both)
    assert reduced == cluster.ring(both).collective_time("all_reduce", 1e9, 16)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("a100x1024", tuple(range(8))),
        ("a100x1024", tuple(range(16))),
        ("a100x1024", (*range(4), *range(8, 12))),
        ("a100x1024", tuple(range(0, 64, 8))),
        ("a100x1024", (0, 1, 2, 8)),  # rank 8 sends all to another node
        ("two_sites", tuple(range(8, 40))),  # two nodes of 8 at one site, half a node of 16 at the other
    ],
)
def test_an_all_to_all_sends_over_slow_links_only_what_leaves(name: str, ranks: tuple[int, ...]) -> None:
    """It takes as long as the messages of which it consists, and a latency for each of the others."""
    cluster, size = load_cluster(name), 1e9
    pairs = [((a, b), size / len(ranks) ** 2) for a in ranks for b in ranks if a != b]
    occupied, _ = cluster.exchange(pairs)
    latencies = (len(ranks) - 1) * cluster.ring(ranks).latency
    assert cluster.collective_time("all_to_all", size, ranks) == pytest.approx(occupied + latencies)


def test_a_message_is_passed_on_while_it_arrives() -> None:
    """Two messages of a gigabyte leave one after the other; one goes through both hosts in the time of one."""
    cluster = load_cluster("p3x64")
    hop = cluster.link((0, 8)).message_latency
    assert cluster.exchange([((0, 8), 1e9), ((0, 16), 1e9)]) == pytest.approx((2e9 / 2.8e9, hop))
    assert cluster.exchange([((0, 8, 16), 1e9)]) == pytest.approx((1e9 / 2.8e9, 2 * hop + 2**19 / 2.8e9))
    assert cluster.exchange([((0, 8, 16), 1600)]) == pytest.approx((1600 / 2.8e9, 2 * hop + 100 / 2.8e9))


def test_sending_may_differ_from_reducing() -> None:
    link = Link("loopback", 1e9, 1e-4, send_bandwidth=2e9, send_latency=0.0)
    assert link.message_latency + 2e9 / link.message_bandwidth == 1.0
    plain = Link("x", 1e9, 0.5)
    assert plain.message_latency + 1e9 / plain.message_bandwidth == 1.5
    assert replace(link, alone_bandwidth=3e9).alone_message_bandwidth == 6e9  # as for collectives


def test_cores_are_shared() -> None:
    laptop = load_cluster("laptop")
    assert laptop.shares_cores and laptop.sharing(1) == 1 and laptop.sharing(4 * laptop.size) == 4
    laptop.check_size(1000)
    many = tuple(range(1000))
    alone = laptop.link((0, 999))
    assert laptop.link(many) == alone and laptop.ring(many) == replace(alone, pair_bandwidth=alone.bandwidth)
    assert laptop.device(999) == laptop.device(0)
    gpus = load_cluster("h200x8")
    gpus.check_size(8)
    assert gpus.sharing(8) == 1
    with pytest.raises(PlanError, match="E0610"):
        gpus.check_size(9)


def test_many_links_are_found_fast() -> None:
    cluster = load_cluster("h100x1024")
    columns = [tuple(range(n, 1024, 8)) for n in range(8)] + [tuple(range(1024))]
    start = process_time()
    for _ in range(200):
        for ranks in columns:
            _find(cluster, ranks)
    assert process_time() - start < 1


def _find(cluster: Cluster, ranks: tuple[int, ...]) -> None:
    cluster.link(ranks)
    cluster.ring(ranks)
    cluster.level(ranks)


def test_the_file_of_the_page(tmp_path) -> None:
    """docs/clusters.md shows how a file is written: two sites, each with nodes of its own."""
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text("utf-8")
    text = page.partition("<!-- file: sites.toml -->\n```toml\n")[2].partition("```")[0]
    (tmp_path / "sites.toml").write_text(text)
    cluster = load_cluster(str(tmp_path / "sites.toml"))
    assert [(g.site, g.nodes, g.per_node) for g in cluster.groups] == [("Delft", 2, 4), ("Athens", 1, 8)]
    assert [cluster.level(ranks) for ranks in ((0, 3), (3, 4), (8, 15), (0, 15))] == [
        "nvlink",
        "ethernet",
        "nvlink",
        "line",
    ]


def test_a_price_is_that_of_the_devices_of_each_group_and_of_what_goes_between_sites() -> None:
    cluster = load_cluster("two_sites")
    assert [group.device_hour for group in cluster.groups] == [5.12, 3.06]
    assert cluster.second_price(40) == pytest.approx((32 * 5.12 + 8 * 3.06) / 3600)
    assert cluster.sent_price("send", "wide area", 5e9, 2) == pytest.approx(5 * 0.02)
    assert cluster.sent_price("send", "site", 5e9, 2) == 0
    ring = 64 * cluster.sent_price("all_reduce", "wide area", 5e9, 64)  # it crosses the line there and back
    assert ring == pytest.approx(2 * 2 * 63 / 64 * 5 * 0.02)
    assert load_cluster("a100x64").sent_price("send", "cluster", 5e9, 2) == 0
    assert load_cluster("laptop").second_price(4) == 0
