"""Python knows the lines of a role's file, as long as it is the only one of its name."""

import inspect
import linecache

from ssdsl.runtime.program.program import _compiled


def test_lines_of_roles() -> None:
    scope: dict[str, object] = {}
    exec(_compiled("def step(run):\n    run.first()\n", "role_of_a_test.py"), scope)
    assert linecache.getline("role_of_a_test.py", 2) == "    run.first()\n"
    _compiled("def step(run):\n    run.second()\n", "role_of_a_test.py")
    assert linecache.getlines("role_of_a_test.py") == []
    assert inspect.getsourcefile(scope["step"]) == "role_of_a_test.py"  # what torch.compile asks for
