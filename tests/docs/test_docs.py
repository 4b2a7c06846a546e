"""The documentation is true where a program can tell: links lead somewhere, and generated pages are current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proofbox.cli import reference

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (
        *TOP.glob("*.md"),
        *(TOP / "docs").rglob("*.md"),
        *(TOP / "bench").rglob("*.md"),
        *(TOP / "guest").rglob("*.md"),
    )
)
SCRIPTS = sorted(path for path in (TOP / "scripts").iterdir() if path.is_file())

LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
SYNONYMS = {"jail": "sandbox", "episode": "trial", "scorer": "verifier", "trajectory": "trace", "daemonset": "host"}
NAMED = re.compile(r"`((?:src|tests|scripts|docs|guest|bench|\.ci)/[A-Za-z0-9_./-]*[A-Za-z0-9_])`")


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


def anchors(page: Path) -> set[str]:
    """The names under which headings can be linked to, made as the hosts of repositories make them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Each link to a file of the repository finds it, and each link to a heading finds that heading."""
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.is_relative_to(TOP), f"{target} leads out of the repository"
        assert linked.exists(), f"{target} is not there"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    """A path of the repository in backquotes is one that is there, or that a build makes."""
    built = {"src/proofbox/bin/proofbox-guest"}
    named = set(NAMED.findall(FENCE.sub("", page.read_text())))
    assert sorted(path for path in named - built if not (TOP / path).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_one_word_for_one_thing(page: Path) -> None:
    """The pages use the words that are fixed, and not their synonyms."""
    text = CODE.sub("", FENCE.sub("", page.read_text())).lower()
    used = {word: fixed for word, fixed in SYNONYMS.items() if re.search(rf"\b{word}s?\b", text)}
    assert used == {}, "the fixed word is the one on the right"


def test_the_page_on_the_command_line_is_current() -> None:
    """docs/cli.md is what the commands say now; `scripts/docs` writes it anew."""
    assert (TOP / "docs" / "cli.md").read_text() == reference.render()


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_scripts_say_what_they_do(script: Path) -> None:
    """Every script begins with a sentence for the reader."""
    lines = script.read_text().splitlines()
    first = lines[1] if lines[0].startswith("#!") else lines[0]
    assert first.startswith("# ")
    assert len(first.split()) > 3
