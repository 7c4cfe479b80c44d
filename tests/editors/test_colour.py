"""The TextMate grammar of editors: the scope of each word of all plans is what the language's own lexer says it is."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ssdsl.lang.errors.text import FREE, GIVEN
from ssdsl.lang.nodes import SOFT_STATEMENTS
from ssdsl.lang.parse import grammar_parser
from ssdsl.lang.parser.indentation import KEYWORDS

ROOT = Path(__file__).parents[2]
EDITOR = ROOT / "editors" / "vscode"
PLANS = sorted(p for folder in ("examples", "examples/papers", "stdlib") for p in (ROOT / folder).glob("*.ssp"))
SOFT = {statement.keyword for statement in SOFT_STATEMENTS}
CONSTANTS = {"none", "any", "true", "false"}
OWN = """# ssdsl 1
# for: --model gpt -s S=2
param S = 0.5 in [1, 2] "help, # no comment"  # a comment "no string"
either:
    keep model.weights through m
or:
    compress model["h.*"] by topk(64) along hidden
precision model - keep to bf16
let precision = bucket.split
bucket model.grads by 25
if not true and none == any or false:
    require either != 3, "x"
"""

if not (EDITOR / "node_modules" / "vscode-textmate").exists() or shutil.which("node") is None:
    pytest.skip("npm install --no-package-lock, in editors/vscode, is what this needs", allow_module_level=True)


def lexed(text: str) -> dict[tuple[int, int], tuple[str, str]]:
    """The tokens of a text by line and column: what they are, and how they are written."""
    found = {}
    for token in grammar_parser().lex(text):
        if token.type not in ("_NL", "_INDENT", "_DEDENT"):
            found[token.line, token.column - 1] = (token.type, str(token))
    return found


def scopes(texts: dict[str, str]) -> dict[str, list[tuple[int, int, int, str]]]:
    command = ["node", str(EDITOR / "test" / "scopes.mjs")]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=60)
    return {name: [tuple(t) for t in tokens] for name, tokens in json.loads(done.stdout).items()}


def test_each_word_of_all_plans_has_the_scope_that_it_is() -> None:
    texts = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in PLANS} | {"own": OWN}
    wrong = []
    for name, tokens in scopes(texts).items():
        starts = {(line, start): scope for line, start, _, scope in tokens}
        lines = texts[name].split("\n")
        for (line, column), (kind, word) in lexed(texts[name]).items():
            scope = starts.get((line, column), "")
            before = lines[line - 1][:column]
            if not _fits(kind, word, scope, before, lines[line - 1][column + len(word) :]):
                wrong.append((name, line, word, kind, scope))
    assert not wrong, wrong[:10]


def _fits(kind: str, word: str, scope: str, before: str, after: str) -> bool:
    is_behind_dot = before.rstrip().endswith(".") and not before.rstrip().endswith("..")
    if is_behind_dot and kind != "NUMBER":  # where any word may stand
        return scope.startswith(("variable.other.member", "support.constant"))
    if word in KEYWORDS:
        return scope.startswith("keyword")
    match kind:
        case "NUMBER":
            return scope.startswith("constant.numeric")  # also behind the dot of `height.2`
        case "STRING":
            return scope.startswith("string")
        case "NAME":
            if (
                word in SOFT
                and not before.strip()
                and (after.strip() == ":" or (after[:1] == " " and after.strip()[:1].isalpha()))
            ):
                return scope.startswith("keyword")
            if word in CONSTANTS:
                return scope.startswith("constant.language")
            if word == "model":
                return scope.startswith("variable.language")
            if word in {*GIVEN, *FREE} and after.startswith("("):
                return scope.startswith(("support.function", "entity.name.function"))
            return scope.startswith(("variable.other", "entity.name.function"))
    return not scope or scope.startswith(("keyword.operator", "punctuation", "source"))


def test_comments_and_headers() -> None:
    found = {(line, start): scope for line, start, _, scope in scopes({"own": OWN})["own"]}
    assert found[1, 0].startswith("comment") and found[1, 2].startswith("keyword.other.header")
    assert found[2, 7].startswith("string.unquoted.header")
    assert "string" in found[3, OWN.split("\n")[2].index('"')]
    assert found[3, OWN.split("\n")[2].index("# a comment")].startswith("comment")


def test_the_words_are_those_of_the_language() -> None:
    """A new statement or builtin function has to be added to the grammar."""
    grammar = (EDITOR / "syntaxes" / "ssp.tmLanguage.json").read_text("utf-8")
    for word in (*KEYWORDS, *SOFT, *CONSTANTS, *GIVEN, *FREE):
        assert (
            word in grammar.replace("\\b", " ").replace("|", " ").replace("(", " ").replace(")", " ").split()
            or f'"{word}"' in grammar
        ), word
