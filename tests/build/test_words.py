"""Variables, quotes, and what a ``.dockerignore`` leaves out: the rules of Dockerfiles."""

from __future__ import annotations

import pytest

from proofbox.build.ignore import parse
from proofbox.build.words import expand, expand_content
from proofbox.errors import InvalidInput

KNOWN = {"A": "a", "EMPTY": "", "LONG_name1": "long"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$A", "a"),
        ("${A}b", "ab"),
        ("$LONG_name1.x", "long.x"),
        ("$NONE", ""),
        ("${NONE:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY-other}", ""),
        ("${A:+set}", "set"),
        ("${EMPTY:+set}", ""),
        ("${EMPTY+set}", "set"),
        ("${NONE:-${A}b}", "ab"),
        ("\\$A", "$A"),
        ("'$A'", "$A"),
        ('"$A c"', "a c"),
        ('"\\"q\\" \\n"', '"q" \\n'),
        ("a\\ b", "a b"),
        ("5$", "5$"),
    ],
)
def test_words_are_what_a_dockerfile_means(text: str, result: str) -> None:
    """Names in every form, defaults, quotes and escapes."""
    assert expand(text, KNOWN) == result


@pytest.mark.parametrize("text", ["${A#x}", "${", "${A", "'a", '"a', "${A:-b", "${A/x/y}"])
def test_what_only_a_shell_could_do_is_refused(text: str) -> None:
    """An expansion that is not known is no empty text."""
    with pytest.raises(InvalidInput):
        expand(text, KNOWN)


def test_a_document_keeps_its_quotes() -> None:
    """Variables are replaced in it, and an escaped dollar is one."""
    assert expand_content("a='$A' \"$A\" \\$A \\n", KNOWN) == "a='a' \"a\" $A \\n"


@pytest.mark.parametrize(
    ("text", "out", "in_"),
    [
        ("*.log", ["a.log"], ["d/a.log", "log"]),
        ("**/*.log", ["a.log", "d/e/a.log"], ["a.txt"]),
        ("d", ["d", "d/a", "d/e/f"], ["dd", "e/d"]),
        ("/d/\n!d/keep", ["d/a"], ["d/keep", "d/keep/x"]),
        ("*\n!a", ["b", "b/c"], ["a", "a/b"]),
        ("!a\n*", ["a", "b"], []),
        ("# c\n\n  x  ", ["x"], ["# c"]),
        ("a?c", ["abc"], ["ac", "a/c"]),
        ("[ab]x", ["ax", "bx"], ["cx"]),
        ("a.c", ["a.c"], ["abc"]),
        ("node_modules", ["node_modules/x/y"], ["src/node_modules"]),
        ("**/node_modules", ["node_modules", "src/node_modules/x"], ["node_module"]),
    ],
)
def test_ignored_paths_are_those_that_the_patterns_mean(text: str, out: list[str], in_: list[str]) -> None:
    """The last pattern that fits a path or a directory above it decides."""
    ignored = parse(text)
    assert [path for path in out if not ignored.covers(path)] == []
    assert [path for path in in_ if ignored.covers(path)] == []


def test_a_pattern_that_is_none_is_refused() -> None:
    """It is named."""
    with pytest.raises(InvalidInput, match=r"\[a"):
        parse("[a")
