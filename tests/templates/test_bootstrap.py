"""A Debian suite from a mirror."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from proofbox.errors import InvalidInput, Refused, StoreFailed
from proofbox.templates.bootstrap import bootstrap
from proofbox.templates.store import Store


@pytest.mark.slow
def test_a_suite_comes_from_a_mirror(store: Store) -> None:
    """The smallest system and what was asked for beside it; the record says that it is what the mirror had."""
    if not shutil.which("mmdebstrap"):
        pytest.skip("mmdebstrap is not installed")
    try:
        made = bootstrap(store, "bookworm", "debian/12", include=["netbase"])
    except StoreFailed as failed:
        pytest.skip(f"no mirror can be reached: {failed}")
    top = Path(made.layers[0].source)
    assert (top / "etc/debian_version").read_text().startswith("12")
    assert (top / "etc/services").is_file()
    assert "bookworm" in made.facts["mutable"]


def test_a_mirror_that_is_not_there_leaves_nothing(store: Store, tmp_path: Path) -> None:
    """What the program said is in the message."""
    if not shutil.which("mmdebstrap"):
        pytest.skip("mmdebstrap is not installed")
    with pytest.raises(StoreFailed, match="failed"):
        bootstrap(store, "bookworm", "t", mirror=f"file://{tmp_path}/none")
    assert store.list() == ()
    assert not list((store.home / "making").iterdir())


@pytest.mark.parametrize(
    ("suite", "mirror", "include"),
    [("--hook=x", None, ()), ("bookworm", "deb http://x y", ()), ("bookworm", "--x", ()), ("bookworm", None, ("-o",))],
)
def test_words_that_are_options_are_refused(store: Store, suite: str, mirror: str | None, include: tuple[str]) -> None:
    """None of them gets to the program, which runs with our rights."""
    with pytest.raises(InvalidInput):
        bootstrap(store, suite, "t", mirror=mirror, include=include)


def test_without_the_program_the_remedy_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install."""
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(Refused, match="apt install mmdebstrap"):
        bootstrap(store, "bookworm", "t")
