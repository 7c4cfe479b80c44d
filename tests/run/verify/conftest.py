"""These tests are of the comparison itself: it measures as it does for a user."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_comparisons() -> None:
    pass
