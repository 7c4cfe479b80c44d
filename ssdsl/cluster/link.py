"""A link between devices, and its times in the alpha-beta model."""

from ssdsl.record import Record


class Link(Record):
    """Joins devices: `bandwidth` in bytes per second for each device and direction, `latency` in seconds per message.

    Both are those of collectives. `send_bandwidth` and `send_latency` are those of one sender and one receiver, if they
    differ, as with gloo, which copies and adds while it reduces. `bandwidth` is a device's share when all devices use
    the link; `alone_bandwidth` is the most that it has when others that share its adapter are silent. `pair_bandwidth`
    is that of an all_to_all, in which each device sends to each other one, if a ring has another.
    """

    name: str
    bandwidth: float
    latency: float
    send_bandwidth: float | None = None
    send_latency: float | None = None
    alone_bandwidth: float | None = None
    pair_bandwidth: float | None = None

    @property
    def message_latency(self) -> float:
        """The seconds from when a byte of a message leaves until it arrives."""
        return self.latency if self.send_latency is None else self.send_latency

    @property
    def message_bandwidth(self) -> float:
        """The bytes per second of messages, for each device and direction, when all devices use the link."""
        return self.send_bandwidth or self.bandwidth

    @property
    def alone_message_bandwidth(self) -> float:
        """The bytes per second of one device's messages while others that share its adapter are silent."""
        return self.message_bandwidth * (self.alone_bandwidth or self.bandwidth) / self.bandwidth

    def collective_time(self, kind: str, size_bytes: float, ranks: int) -> float:
        """The seconds of a collective whose *whole* tensor, before or after, has `size_bytes`.

        Ring algorithms: an all_reduce moves 2 (n-1)/n of the data over each link in 2 (n-1) steps, all_gather and
        reduce_scatter half of that; in an all_to_all each rank sends its n-th of the data, except the part that it
        keeps. For an exchange between neighbours `size_bytes` is what a rank receives. Source: Thakur, Rabenseifner,
        Gropp 2005, "Optimization of Collective Communication Operations in MPICH".
        """
        share = (ranks - 1) / ranks
        rounds, volume = {
            "all_reduce": (2 * (ranks - 1), 2 * share),
            "all_gather": (ranks - 1, share),
            "reduce_scatter": (ranks - 1, share),
            # n ranks each hold size / n, and send (n-1)/n of that.
            "all_to_all": (ranks - 1, share / ranks),
            "exchange": (1, 1.0),
        }[kind]
        bandwidth = self.pair_bandwidth if kind == "all_to_all" and self.pair_bandwidth else self.bandwidth
        return rounds * self.latency + volume * size_bytes / bandwidth


class MeshLinks(Record):
    """The links of a mesh: that of a ring along each axis, and of a ring over several, which have more links out of a
    unit than each alone. Axes are numbers."""

    along: tuple[Link, ...]
    rings: tuple[tuple[tuple[int, ...], Link], ...] = ()

    def over(self, *axes: int) -> Link:
        """The link of a ring over some axes. If it is unknown, the slowest of those along one of the axes."""
        found = next((link for over, link in self.rings if over == axes), None)
        return found or min((self.along[axis] for axis in axes), key=lambda link: link.bandwidth)


# gloo on loopback moves about 1.4 GB/s after 50 us (1 MiB between 2 processes: send and receive 0.37 ms, measured).
LOOPBACK = Link("loopback", bandwidth=1.4e9, latency=50e-6)
