"""The plot of a search names its axes."""

from ssdsl.show.charts.scatter import scatter


def test_both_axes_have_their_words() -> None:
    lines = scatter([(0.1, 2e9), (0.2, 1e9), (0.3, 3e9)], [("*", 0.1, 2e9)], 80, "device-seconds", "memory").split("\n")
    assert lines[0].strip() == "memory"
    assert lines[-1].strip() == "device-seconds"
    assert lines[-2].split() == ["100", "ms", "300", "ms"]


def test_one_point_makes_no_plot() -> None:
    assert scatter([(0.1, 2e9)], [], 80, "device-seconds", "memory") == ""
