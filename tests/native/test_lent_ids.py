"""Several users in the sandboxes of a user without rights, by the ids that the host lends to its account."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from tests.native.conftest import Box, OpenBox, gone

from proofbox.host.idmap import find_ids
from proofbox.host.subids import Lent, NotLent, lent_ids
from proofbox.kit.tree import remove_tree
from proofbox.model.limits import Limits
from proofbox.testing.needs import alive_outside

pytestmark = [pytest.mark.anyio, pytest.mark.container]


@pytest.fixture
def lent() -> Lent:
    """What is lent to whoever runs the tests."""
    if os.geteuid() == 0:
        pytest.skip("root maps whatever it likes")
    try:
        return lent_ids(os.geteuid())
    except NotLent as why:
        pytest.skip(str(why))


def outside_of(pid: int) -> list[int]:
    """The real user and group id of a process as the host sees it."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return [int(fields[name].split()[0]) for name in ("Uid", "Gid")]


async def start(box: Box, user: bytes, seconds: str) -> int:
    """A background process of that user, as the host numbers it."""
    assert await box.run(f"sleep {seconds} > /dev/null 2>&1 &", user=user) == (0, "")
    with anyio.fail_after(10):
        while True:
            for pid in alive_outside(seconds):
                with suppress(OSError):  # the shell that started it may go meanwhile
                    if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                        return pid
            await anyio.sleep(0.005)


async def test_a_user_to_whom_ids_are_lent_has_several_users_inside(lent: Lent, open_box: OpenBox) -> None:
    """They own what they make, are kept from what is not theirs, and are others than root outside too."""
    ids = find_ids()
    assert ids.users, ids.why_not
    async with open_box() as box:
        assert await box.run("id -u; touch /tmp/mine; stat -c %U /tmp/mine", user=b"ada") == (0, "1000\nada\n")
        assert (await box.run("touch /etc/mine", user=b"ada"))[0] != 0
        assert await box.run("touch /tmp/his && chown 65534:33 /tmp/his && stat -c '%u %g' /tmp/his") == (
            0,
            "65534 33\n",
        )
        _, id_map = await box.run("cat /proc/self/uid_map")
        assert sum(int(line.split()[2]) for line in id_map.splitlines()) == 65536
        seconds = f"8{os.getpid()}"
        pid = await start(box, b"ada", seconds)
        assert outside_of(box.handle.pid) == [os.geteuid(), os.getegid()]
        assert outside_of(pid) == [lent.uids[0].first + 999, lent.gids[0].first + 999]
    assert gone(pid)


async def test_each_sandbox_has_a_user_namespace_of_its_own(lent: Lent, open_box: OpenBox) -> None:
    """The ids are the same, but root of one has no rights over what belongs to the other."""
    async with open_box(name="one") as one, open_box(name="two") as two:
        spaces = {(await box.run("readlink /proc/self/ns/user"))[1].strip() for box in (one, two)}
        assert len(spaces | {os.readlink("/proc/self/ns/user")}) == 3


async def test_all_users_of_a_sandbox_share_its_limit_on_processes(lent: Lent, open_box: OpenBox) -> None:
    """Root inside gains nothing by becoming another user before each fork, and the neighbour loses nothing."""
    forks = """
import os, time
made = 0
try:
    for number in range(200):
        if os.fork() == 0:
            os.setuid(number)
            os.closerange(0, 3)
            time.sleep(100)
        made += 1
except OSError as error:
    print(error.errno, made)
"""
    small = Limits(disk=16 << 20, inodes=2000, processes=20)
    async with open_box(name="one", limits=small) as one, open_box(name="two", limits=small) as two:
        _, told = await one.run(f"python3 -I -S -c '{forks}'")
        errno, made = map(int, told.split()[:2])
        assert errno == 11
        assert 15 <= made <= 36
        assert await two.run("for n in 1 2 3 4 5 6 7 8; do sleep 0.01 & done; wait; echo on") == (0, "on\n")


def test_what_others_inside_own_can_be_removed(lent: Lent, tmp_path: Path) -> None:
    """Directories that only one of the lent ids may enter, as a copy of what a sandbox wrote has them."""
    ids = find_ids()
    (tmp_path / "kept/his").mkdir(parents=True)
    (tmp_path / "kept/his/file").touch(mode=0o600)
    (tmp_path / "kept/his").chmod(0o700)
    ids.own(tmp_path / "kept/his", 33)
    with pytest.raises(PermissionError):
        list((tmp_path / "kept/his").iterdir())
    remove_tree(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
