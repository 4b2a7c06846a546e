"""A store of its own for each test, and a registry for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.templates.registries import Registry, serving

from proofbox.kit.tree import remove_tree
from proofbox.templates.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    home = tmp_path / "home"
    yield Store(home)
    remove_tree(home)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small root file system with a bit of everything that is allowed."""
    top = tmp_path / "rootfs"
    (top / "bin").mkdir(parents=True)
    (top / "bin/tool").write_bytes(b"#!/bin/sh\necho hello\n")
    (top / "bin/tool").chmod(0o755)
    (top / "bin/also").hardlink_to(top / "bin/tool")
    (top / "bin/sh").symlink_to("/bin/tool")
    (top / "tmp").mkdir()
    (top / "tmp").chmod(0o1777)
    (top / "locked").mkdir()
    (top / "locked/file").write_text("x")
    (top / "locked").chmod(0o500)
    return top


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry on loopback; skipped where its package or skopeo is not installed."""
    with serving(tmp_path_factory.mktemp("registry")) as found:
        yield found
