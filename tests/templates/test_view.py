"""What a sandbox of a template would see, read from its layers without mounting them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from proofbox.errors import InvalidInput
from proofbox.model.template import Layer
from proofbox.templates.tree import OPAQUE
from proofbox.templates.view import View, names_of


@pytest.fixture
def view(tmp_path: Path) -> View:
    """Two layers at the root with a removal, an opaque directory and links, and a third directory at /usr."""
    low, top, usr = (tmp_path / name for name in ("low", "top", "usr"))
    for directory in (low / "d", low / "o", low / "usr", top / "d", top / "o", usr / "bin"):
        directory.mkdir(parents=True)
    for name in ("d/a", "d/b", "o/old", "gone", "usr/hidden"):
        (low / name).write_text("low")
    for name in ("d/b", "d/c", "o/new"):
        (top / name).write_text("top")
    (usr / "bin/sh").write_text("shell")
    os.mknod(top / "gone", stat.S_IFCHR, 0)
    os.setxattr(top / "o", OPAQUE, b"y")
    for name, target in {"bin": "usr/bin", "up": "../../../etc", "loop": "loop", "abs": "/d/../o"}.items():
        (low / name).symlink_to(target)
    return View((Layer("/", str(top)), Layer("/", str(low)), Layer("/usr", str(usr))))


def test_layers_are_merged_as_an_overlay_does_it(view: View) -> None:
    """The upper one wins, what it removed or hid is not there, and another target covers what lies below it."""
    assert [view.read(name) for name in ("d/a", "d/b", "d/c", "o/new", "usr/bin/sh")] == [
        b"low",
        b"top",
        b"top",
        b"top",
        b"shell",
    ]
    assert [view.read(name) for name in ("gone", "o/old", "usr/hidden", "none", "d")] == [None] * 5
    assert view.names(()) == [b"abs", b"bin", b"d", b"loop", b"o", b"up", b"usr"]
    assert (view.names((b"d",)), view.names((b"usr",)), view.names((b"gone",))) == ([b"a", b"b", b"c"], [b"bin"], [])


def test_a_walk_sees_each_path_once_and_what_is_seen_there(view: View) -> None:
    """Directories before what they hold, other targets in their place, links as links."""
    seen = [b"/".join(path).decode() for path, _ in view.walk(())]
    assert seen[0] == ""
    assert sorted(seen) == sorted(
        ["", "abs", "bin", "d", "d/a", "d/b", "d/c", "loop", "o", "o/new", "up", "usr", "usr/bin", "usr/bin/sh"]
    )
    assert [b"/".join(path) for path, _ in view.walk((b"usr", b"bin"))] == [b"usr/bin", b"usr/bin/sh"]
    assert list(view.walk((b"gone",))) == []


def test_links_lead_inside_only(view: View) -> None:
    """Relative and absolute ones, through another target, and up out of the root, which is the root again."""
    assert view.read("bin/sh") == b"shell"
    assert view.read("abs/new") == b"top"
    assert view.resolve(names_of("up/passwd")) == (b"etc", b"passwd")
    assert view.resolve(names_of("bin"), last=False) == (b"bin",)
    assert view.find(names_of("bin/sh")) is None
    with pytest.raises(InvalidInput, match="more than 40 links"):
        view.resolve(names_of("loop/x"))
