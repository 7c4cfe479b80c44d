"""Fixtures of the tests that carry values between devices; torch is loaded for these alone."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lower.lockstep import Lockstep, Tensors


@pytest.fixture(scope="module")
def lockstep() -> "Lockstep":
    from tests.lower.lockstep import Lockstep

    return Lockstep()


@pytest.fixture(scope="session")
def tensors() -> "type[Tensors]":
    from tests.lower.lockstep import Tensors

    return Tensors
