"""Snapshots: what they hold, and that they are as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sandbox.forks.shown import output

from proofbox.errors import InvalidInput, StoreFailed, UnknownTemplate
from proofbox.kit import durable
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store

pytestmark = [pytest.mark.container, pytest.mark.anyio]

CLOSED = r"""
set -e
mkdir -m 700 /w; echo secret > /w/file; chmod 600 /w/file; chown -R 7:8 /w
mkdir -p /opt/closed; chown 7:8 /opt/closed; chmod 0 /opt/closed
echo secret > /root/file; chown 9:9 /root/file; chmod 0 /root/file; chown 7:8 /root; chmod 700 /root
"""
"""Files and directories that nobody but another user inside may read."""


async def test_a_snapshot_is_a_template_that_others_lie_over(host: Host) -> None:
    """It has a name, can be snapshotted again, and no collection takes it, or what it lies over, from who uses it."""
    store = open_store()
    async with host.open_sandbox() as box:
        await output(box, "echo one > /one")
        first = await box.snapshot("tests/first")
        await output(box, "echo later > /one")
    async with host.open_sandbox("tests/first") as box:
        assert await output(box, "cat /one") == "one"
        await output(box, "rm /one; echo two > /two")
        second = await box.snapshot("tests/second")
    assert first.digest != second.digest
    store.collect()
    async with host.open_sandbox(second) as box:
        assert await output(box, "cat /two; test -e /one || echo none") == "two\nnone"
        with pytest.raises(InvalidInput, match="use"):
            store.remove("tests/second")
        assert (await box.snapshot()).digest == (await box.snapshot()).digest, "the same state is the same template"
    assert store.resolve("tests/first").digest == first.digest


async def test_a_snapshot_has_what_another_user_inside_has_closed(host: Host) -> None:
    """Whoever makes it: contents, modes and owners are the parent's, and the same state has the same digest."""
    if not host.probe.users:
        pytest.skip("there is one user inside")
    look = "cat /w/file /root/file; stat -c '%n %a %u %g' /w /w/file /root /root/file /opt/closed"
    async with host.open_sandbox() as box:
        await output(box, CLOSED)
        wanted = await output(box, look)
        template = await box.snapshot()
        await box.freeze()
        assert (await box.snapshot()).digest == template.digest
    async with host.open_sandbox(template) as box:
        assert await output(box, look) == wanted
        assert (await box.snapshot()).digest == (await box.snapshot()).digest


async def test_the_top_directory_itself_may_be_anothers(host: Host) -> None:
    """Who has the root directory inside is kept too, and does not stop the one who makes the snapshot."""
    if not host.probe.users:
        pytest.skip("there is one user inside")
    async with host.open_sandbox() as box:
        await output(box, "chown 7:8 /; chmod 711 /; touch /new")
        template = await box.snapshot()
    async with host.open_sandbox(template) as box:
        assert await output(box, "stat -c '%a %u %g' /") == "711 7 8"


HANDS_DOWN = r"""
import os, struct
os.chmod('/w', 0o2775)
entries = [(1, 7), (4, 5), (0x20, 0)]
value = struct.pack('<I', 2) + b''.join(struct.pack('<HHI', tag, bits, 0xffffffff) for tag, bits in entries)
try: os.setxattr('/w', 'system.posix_acl_default', value)
except OSError: pass  # files in memory have none, in a kernel that was built so
"""
"""A directory that gives its group and an access list to what is made in it."""


async def test_what_is_copied_below_a_directory_takes_nothing_from_it(host: Host) -> None:
    """Where two layers become one the upper one's directory is there first; what the lower has in it is as it was."""
    look = (
        "import os\n"
        "for path in ('/w', '/w/f', '/w/sub', '/w/sub/g'):\n"
        "    found = os.stat(path)\n"
        "    print(path, oct(found.st_mode), found.st_uid, found.st_gid,\n"
        "          [(name, os.getxattr(path, name)) for name in os.listxattr(path)])"
    )
    async with host.open_sandbox() as box:
        await output(box, "mkdir -p /w/sub; touch /w/f /w/sub/g; chmod 604 /w/f; chmod 705 /w/sub")
        await box.freeze()
        async with box.fork() as (child,):
            await output(child, "chgrp 8 /w 2>/dev/null || true")
            await output(child, f'python3 -c "{HANDS_DOWN}"; touch /w/new')
            wanted = (await child.run(["python3", "-c", look])).stdout
            assert "/w/sub 0o40705" in wanted
            template = await child.snapshot()
    async with host.open_sandbox(template) as box:
        assert (await box.run(["python3", "-c", look])).stdout == wanted


async def test_a_snapshot_that_is_not_on_the_disk_as_it_was_written_is_no_template(
    host: Host, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit that changes between the flush and the name is an error; nothing has that name, and nothing is left."""
    flush = durable.sync_file_system

    def broken(place: Path) -> None:
        flush(place)
        victim = next(place.glob("tree/w/file"), None)
        if victim is not None:
            with open(victim, "r+b") as file:
                file.write(b"X")
            flush(place)

    monkeypatch.setattr("proofbox.templates.layers.sync_file_system", broken)
    trees = sorted((home / "trees").iterdir())
    async with host.open_sandbox() as box:
        await output(box, f"mkdir /w; echo {host.runtime_name} > /w/file")
        with pytest.raises(StoreFailed, match="read back from the disk"):
            await box.snapshot(f"tests/broken-{host.runtime_name}")
        assert sorted((home / "trees").iterdir()) == trees
        with pytest.raises(UnknownTemplate):
            open_store().resolve(f"tests/broken-{host.runtime_name}")
        monkeypatch.undo()
        await box.snapshot(f"tests/broken-{host.runtime_name}")
    async with host.open_sandbox(f"tests/broken-{host.runtime_name}") as copy:
        assert await output(copy, "cat /w/file") == host.runtime_name


async def test_what_cannot_be_kept_is_said(host: Host) -> None:
    """A socket is left out and counted; a tree too deep to be walked, or a file longer than anybody would read, is
    refused, and nothing of it is left.
    """
    async with host.open_sandbox() as box:
        bind = "import socket; socket.socket(socket.AF_UNIX).bind('/w/socket')"
        await output(box, f'mkdir /w; mkfifo /w/fifo; python3 -c "{bind}"')
        template = await box.snapshot()
        assert template.facts["sockets_left_out"] == "1"
        async with host.open_sandbox(template) as copy:
            assert await output(copy, "ls /w") == "fifo"
        dig = "import os\nos.chdir('/w')\nfor i in range(300):\n    os.mkdir('d'); os.chdir('d')"
        await output(box, f'python3 -c "{dig}"')
        with pytest.raises(StoreFailed, match="too many directories"):
            await box.snapshot()
        with pytest.raises(InvalidInput):
            await box.snapshot("No Name")
        await output(box, "rm -r /w/d; truncate -s 1T /w/long; echo end >> /w/long")
        with pytest.raises(StoreFailed, match="more holes"):
            await box.snapshot()
        async with box.fork() as (child,):
            assert await output(child, "tail -c 4 /w/long; stat -c %s /w/long") == f"end\n{(1 << 40) + 4}"
        assert await output(box, "echo on") == "on"
