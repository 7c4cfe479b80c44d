"""A pause of the collector ends as it began: on if it was on, off if it was off."""

import gc

import pytest

from ssdsl.collector import paused_collector


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_off_in_a_pause_and_then_as_before(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    with pytest.raises(ZeroDivisionError), paused_collector():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled() == is_on
