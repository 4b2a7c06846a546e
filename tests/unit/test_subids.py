"""Which ids a host lends to a user, and what it says where there are too few."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

import pytest

from proofbox.host.idmap import Ids
from proofbox.host.subids import NEEDED, Extent, Lent, NotLent, lent_ids

UID = os.getuid()

needs_tools = pytest.mark.skipif(not shutil.which("newuidmap"), reason="the package uidmap is not installed")


@pytest.fixture
def name() -> str:
    """The account of whoever runs the tests."""
    try:
        return pwd.getpwuid(UID).pw_name
    except KeyError:
        pytest.skip(f"uid {UID} has no account")


def write(root: Path, users: str, groups: str) -> Path:
    """A root of a file system with these two files."""
    (root / "etc").mkdir()
    (root / "etc/subuid").write_text(users)
    (root / "etc/subgid").write_text(groups)
    return root


@needs_tools
def test_lines_count_by_name_and_by_number(tmp_path: Path, name: str) -> None:
    """Of all of a user's lines as many ids are taken as are needed, in their order; lines of others are not seen."""
    lines = f"# none\nsomebody:1:99999\n{name}:200000:10\nnot a line\n{UID}:300000:65536\n{name}:9:x\n"
    found = lent_ids(UID, write(tmp_path, lines, f"{UID}:400000:70000\n"))
    assert found == Lent((Extent(200000, 10), Extent(300000, NEEDED - 10)), (Extent(400000, NEEDED),))
    assert str(found) == f"uids 200000-200009,300000-{300000 + NEEDED - 11}, gids 400000-{400000 + NEEDED - 1}"


@needs_tools
def test_no_line_is_told_with_the_command_that_makes_one(tmp_path: Path, name: str) -> None:
    """The range that the command names is one that nobody has."""
    root = write(tmp_path, "some-body-else:100000:65536\n", "yet-another:200000:65536\n")
    with pytest.raises(NotLent) as caught:
        lent_ids(UID, root)
    assert "/etc/subuid lends" in str(caught.value)
    assert f"usermod --add-subuids 265536-331071 --add-subgids 265536-331071 {name}" in str(caught.value)


@needs_tools
def test_too_few_ids_are_as_good_as_none(tmp_path: Path, name: str) -> None:
    """How many there are is told, and for which of the two."""
    root = write(tmp_path, f"{name}:100000:65536\n", f"{name}:100000:1000\n")
    with pytest.raises(NotLent, match=r"/etc/subgid lends .* 1,000 ids of the 65,535 that are needed"):
        lent_ids(UID, root)


@needs_tools
def test_the_hosts_root_is_never_lent(tmp_path: Path, name: str) -> None:
    """A line that hands it out is a mistake that no sandbox is made of."""
    root = write(tmp_path, f"{name}:0:65536\n", f"{name}:0:65536\n")
    with pytest.raises(NotLent):
        lent_ids(UID, root)


def test_missing_tools_are_told_with_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything else: without them no line helps."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotLent, match=r"no newuidmap and no newgidmap \(apt install uidmap\)"):
        lent_ids(UID)


def test_a_namespace_below_has_the_same_ids_in_parts_that_the_kernel_takes() -> None:
    """No part reaches across two of the namespace above; together they are all ids from 0 up."""
    lent = Lent((Extent(200000, 10), Extent(300000, NEEDED - 10)), (Extent(400000, NEEDED),))
    mapped = Ids(full=False, uid=1000, gid=1000, namespace=9, lent=lent).map_of(0)
    assert mapped is not None
    assert mapped.uids == (Extent(0, 1), Extent(1, 10), Extent(11, NEEDED - 10))
    assert mapped.gids == (Extent(0, 1), Extent(1, NEEDED))
    assert Ids(full=False, uid=1000, gid=1000).map_of(0) is None
