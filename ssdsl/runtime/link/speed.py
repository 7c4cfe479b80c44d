"""How fast an emulated network is: the text of `--link`, and what it says of each pair of ranks. Does not import torch.

```
bandwidth=1Gb/s,latency=2ms                    all ranks are nodes of their own
bandwidth=1Gb/s,latency=2ms,node=8:10Gb/s      ranks 0 to 7 are a node, within which links carry 10 Gb/s; 8 to 15 too
bandwidth=1Gb/s,host=2GB/s                     what a plan assigns to the host goes there and comes back at 2 GB/s
```
"""

import math
import re
from dataclasses import dataclass

FORM = "bandwidth=RATE[,latency=TIME][,node=RANKS:RATE][,host=RATE], as bandwidth=1Gb/s,latency=2ms,node=8:10Gb/s"
WORDS = {"bandwidth", "latency", "node", "host"}
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


class WrongLink(ValueError):
    """The text of `--link` cannot be read; the message says what it should be."""


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of all links. `node` ranks in a row share a node, within which links carry `node_bytes_per_s`; the one
    between a rank and its host carries `host_bytes_per_s`, or is not emulated."""

    bytes_per_s: float
    latency_s: float = 0.0
    node: int = 1
    node_bytes_per_s: float = math.inf
    host_bytes_per_s: float | None = None

    @classmethod
    def read(cls, text: str) -> "Speed":
        """The speed that a text says. Raises WrongLink.

        >>> Speed.read("bandwidth=1Gb/s,latency=2ms,node=8:10Gb/s")
        Speed(bytes_per_s=125000000.0, latency_s=0.002, node=8, node_bytes_per_s=1250000000.0, host_bytes_per_s=None)
        """
        pairs = [pair.partition("=")[::2] for pair in text.split(",")]
        words = {name.strip(): value.strip() for name, value in pairs}
        if "bandwidth" not in words or len(words) < len(pairs) or words.keys() - WORDS:
            raise WrongLink(f"`{text}` is not {FORM}")
        rate, latency_s = _rate(words["bandwidth"]), _seconds(words.get("latency", "0s"))
        host = _rate(words["host"]) if "host" in words else None
        if "node" not in words:
            return cls(rate, latency_s, host_bytes_per_s=host)
        ranks, _, within = words["node"].partition(":")
        if not ranks.isdecimal() or int(ranks) < 1:
            raise WrongLink(f"`node={words['node']}` is not RANKS:RATE, as node=8:10Gb/s")
        return cls(rate, latency_s, int(ranks), _rate(within), host)

    def between(self, one: int, other: int) -> float:
        """The bytes that the link from a rank to another one carries in a second."""
        return self.node_bytes_per_s if one // self.node == other // self.node else self.bytes_per_s


def _rate(text: str) -> float:
    """Bytes a second: `1Gb/s` are 1e9 bits, `1GB/s` are 1e9 bytes."""
    parts = re.fullmatch(r"(\d+\.?\d*) ?([kMGT]?)(b|bit|B)/s", text)
    if parts is None or float(parts[1]) == 0:
        raise WrongLink(f"`{text}` is no rate: give bits or bytes a second, as 1Gb/s, 250Mb/s or 12.5GB/s")
    return float(parts[1]) * _PREFIXES[parts[2]] / (1 if parts[3] == "B" else 8)


def _seconds(text: str) -> float:
    parts = re.fullmatch(r"(\d+\.?\d*) ?(us|ms|s)", text)
    if parts is None:
        raise WrongLink(f"`{text}` is no time: give it as 2ms, 50us or 0.1s")
    return float(parts[1]) * _SECONDS[parts[2]]
