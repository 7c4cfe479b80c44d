"""The programs that docs/ir.md prints are those of tests/ir."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BLOCK = re.compile(r"<!-- golden: (\w+) -->\n```text\n(.*?)```", re.DOTALL)


def test_printed_programs_are_current() -> None:
    found = BLOCK.findall((ROOT / "docs" / "ir.md").read_text("utf-8"))
    assert found
    for name, text in found:
        assert text in (ROOT / "tests" / "ir" / "programs" / f"{name}.program").read_text("utf-8")
