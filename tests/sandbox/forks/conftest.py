"""A template store of their own, and each runtime that keeps what a sandbox writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.conftest import open_host

from proofbox.kit.tree import remove_tree
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A template store of this file's own, with the ``host`` template of the usual one in it: it takes seconds to make.

    Nothing may be half-made in it in the end.
    """
    usual, path = open_store(), tmp_path_factory.mktemp("home")
    root = usual.layers.tree(usual.resolve("host").layers[0].digest).parent
    shutil.copytree(root, path / "trees" / root.name, symlinks=True, copy_function=_link)
    shutil.copyfile(usual.home / "host.json", path / "host.json")
    before = os.environ.get("PROOFBOX_HOME")
    os.environ["PROOFBOX_HOME"] = str(path)
    yield path
    if before is None:
        del os.environ["PROOFBOX_HOME"]
    else:
        os.environ["PROOFBOX_HOME"] = before
    made = list((path / "making").glob("*/layer"))
    remove_tree(path)  # some of it belongs to ids that are lent to us, which pytest could not remove
    assert made == []


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop for the file."""
    return "asyncio"


@pytest.fixture(scope="module", params=["native", "crun"])
async def host(request: pytest.FixtureRequest, anyio_backend: str, home: Path) -> AsyncIterator[Host]:
    """This machine with one of them; skipped with the reason where it does not run."""
    async with open_host(request.param) as found:
        yield found
