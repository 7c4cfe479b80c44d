"""Autocast is seen, and can be switched off, from outside the module that uses it."""

import torch

from ssdsl.run.precision import autocast_off, autocast_seen


def product(enabled: bool = True) -> torch.dtype:
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_enabled_regions_are_seen() -> None:
    with autocast_seen() as seen:
        assert product(enabled=False) is torch.float32
        assert not seen
        assert product() is torch.bfloat16
    assert seen == [torch.bfloat16]


def test_regions_cast_nothing_when_off() -> None:
    with autocast_off():
        assert product() is torch.float32
    assert product() is torch.bfloat16
