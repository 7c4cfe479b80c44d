"""The most memory that tensors take at once."""

import threading

import pytest
import torch

from ssdsl.runtime.profile.recorder import AllocatedMemory

CPU = torch.device("cpu")
WIDTH = 1 << 18


def grown(memory: AllocatedMemory) -> float:
    """By how many wide rows memory has grown at most."""
    return (memory.peak_bytes - memory.begun_bytes) / (WIDTH * 4)


def test_a_buffer_inside_a_compiled_region_counts() -> None:
    """No operator of the caller makes it: the product with `wide` never leaves the region."""
    narrow, wide = torch.randn(8, 8), torch.randn(8, WIDTH)
    run = torch.compile(lambda x: (x @ wide) @ wide.mT, fullgraph=True)
    run(narrow)
    with AllocatedMemory(CPU) as memory:
        run(narrow)
    assert grown(memory) == pytest.approx(8, rel=0.01)


def test_what_another_thread_frees_is_gone() -> None:
    """As a thread of gloo does, if it is the last to let go of a tensor."""
    with AllocatedMemory(CPU) as memory:
        for _ in range(3):
            tensors = [torch.empty(WIDTH)]
            thread = threading.Thread(target=tensors.clear)
            thread.start()
            thread.join()
    assert grown(memory) == pytest.approx(1, rel=0.01)


def test_what_was_there_does_not_count_as_growth() -> None:
    there = torch.empty(WIDTH)
    with AllocatedMemory(CPU) as memory:
        two = there + 1, there + 2
        del two
    assert grown(memory) == pytest.approx(2, rel=0.01)
