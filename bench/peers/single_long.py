"""One process, the untouched GPT on a long sequence: the losses that those who split the sequence must reach."""

from bench.gpt import build_long
from bench.peers.setup import train
from bench.peers.single import build

if __name__ == "__main__":
    train(build, build_long)
