"""The page's scripts that know the language: links that open again, and headers that commands read."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssdsl.lang.header import header_of
from ssdsl.text.source import Source

PAGE = Path(__file__).parents[2] / "docs" / "playground"
PLAN = 'param S = 2 "stages"\n\nmesh gpus(pp = S)\n'
HEADERS = [
    PLAN,
    f"# ssdsl 1\n{PLAN}",
    f"# a plan\n# ssdsl 1\n\n{PLAN}",
    f"# for: --model gpt --set S=2\n{PLAN}",
    f"# ssdsl 1\n# for: -m gpt -c a100x8 -s S=2\n# for: --set M=4 --set S=3\n# more\n{PLAN}",
    f"# for: --cluster a100x8\n{PLAN}# for: --model gpt\n",
    "",
]
CHANGES = [
    ("--model", "llama:7b", ""),
    ("--cluster", "h100x8", ""),
    ("--set", "8", "S"),
    ("--set", None, "S"),
    ("--model", None, ""),
]

if shutil.which("node") is None:
    pytest.skip("node is not installed, which runs the page's scripts", allow_module_level=True)


def node(script: str, given: object) -> Any:
    """What a script writes as JSON; `given` is what it was given."""
    script = f"const given = {json.dumps(given)};\n{script}"
    command = ["node", "--input-type=module", "--eval", script]
    done = subprocess.run(command, cwd=PAGE, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_changed_header_is_what_commands_read() -> None:
    script = """
        import { optionOf, withOption } from "./header.js";
        const changed = ([text, [option, value, param]]) => {
          const found = withOption(text, option, value, param);
          return [found, optionOf(found, option, param)];
        };
        console.log(JSON.stringify(given.map(changed)));
    """
    cases = [(text, change) for text in HEADERS for change in CHANGES]
    for (text, (option, value, param)), (changed, shown) in zip(cases, node(script, cases), strict=True):
        before, after = header_of(Source("", text)), header_of(Source("", changed))
        if option == "--set":
            assert after.numbers.get(param) == (int(value) if value else _earlier(before, param)), changed
            others = {name: number for name, number in before.numbers.items() if name != param}
            assert others == {name: number for name, number in after.numbers.items() if name != param}
        else:
            assert after.given(option) == value
        assert shown == (value if value else shown)
        rest = [line for line in changed.split("\n") if not line.startswith("# for:")]
        assert [line for line in rest if line] == [
            line for line in text.split("\n") if line and not line.startswith("# for:")
        ]


def _earlier(header: Any, param: str) -> int | None:
    """The value that an option has when its last one is taken out."""
    pairs = [value.split("=") for option, value in header.options if option == "--set"]
    found = [int(number) for name, number in pairs if name == param]
    return found[-2] if len(found) > 1 else None


@settings(max_examples=5, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=300), min_size=20, max_size=20))
def test_a_link_shows_what_it_was_made_of(texts: list[str]) -> None:
    script = """
        import { fragmentOf, shownBy } from "./link.js";
        const fragments = await Promise.all(given.map((text) => fragmentOf({ version: "1", text })));
        const shown = await Promise.all(fragments.map(shownBy));
        console.log(JSON.stringify([fragments, shown]));
    """
    fragments, shown = node(script, texts)
    assert [one["text"] for one in shown] == texts
    assert all(set(fragment[1:]) <= {*map(chr, range(128))} - {*"+/=#%& "} for fragment in fragments)


def test_other_fragments_show_nothing() -> None:
    script = """
        import { shownBy } from "./link.js";
        console.log(JSON.stringify(await Promise.all(given.map(shownBy))));
    """
    assert node(script, ["", "#", "#abc", "#%%%", "#S-YAAA"]) == [None] * 5
