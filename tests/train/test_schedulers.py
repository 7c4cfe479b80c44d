"""Which schedulers an engine finds, where the process has the engines of several compiled folders."""

import importlib.util
from types import ModuleType

import torch
from torch.optim.lr_scheduler import StepLR

from ssdsl.runtime.train import schedulers


def copy_of(module: ModuleType) -> ModuleType:
    """The module once more, as in a compiled folder."""
    assert module.__file__
    spec = importlib.util.spec_from_file_location(f"{module.__name__}_of_a_folder", module.__file__)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_each_engine_finds_them() -> None:
    folder, optimizer = copy_of(schedulers), torch.optim.SGD([torch.ones(1)], lr=0.1)
    scheduler = StepLR(optimizer, 1)
    for module in (schedulers, folder):
        assert module.schedulers_of(optimizer) == [scheduler]
