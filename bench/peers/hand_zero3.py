"""ZeRO-3 by hand: the third stage of `hand_zero`."""

from functools import partial

from bench.peers.hand_zero import zero
from bench.peers.setup import train

build = partial(zero, stage=3)

if __name__ == "__main__":
    train(build)
