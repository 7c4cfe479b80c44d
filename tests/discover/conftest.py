"""These tests are of the experiments themselves: each is a process as a user's."""

import pytest

from tests.model.ops.conftest import package  # noqa: F401


@pytest.fixture(autouse=True, scope="module")
def quick_starts() -> None:
    pass
