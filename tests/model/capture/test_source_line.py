"""Places in the user's own code."""

from collections.abc import Callable
from functools import wraps

from ssdsl.model.capture.source_line import of_function


def plain() -> int:
    return 1


def decorated(function: Callable[[], int]) -> Callable[[], int]:
    @wraps(function)
    def call() -> int:
        return function() + 1

    return call


def test_a_decorated_function_is_where_it_is_written_itself() -> None:
    assert of_function(decorated(plain)) == of_function(plain) is not None
