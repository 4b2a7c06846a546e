"""Files of the host, by every way that leads to a file."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.escape.conftest import Inside, Witness

from proofbox.errors import FileFailed

ABSENT = {
    "by its name": "read(GIVEN['file'])",
    "by going up": "read('../' * 64 + GIVEN['file'])",
    "by the root of a process": "read('/proc/self/root' + GIVEN['file'])",
    "by the root of a thread": "read(f'/proc/self/task/{os.getpid()}/root' + GIVEN['file'])",
    "by a link": "os.symlink(GIVEN['file'], f'/tmp/l{os.getuid()}'); read(f'/tmp/l{os.getuid()}')",
    "by a hard link": "os.link(GIVEN['file'], f'/tmp/h{os.getuid()}')",
    "by renaming it": "os.rename(GIVEN['file'], f'/tmp/r{os.getuid()}')",
    "by a link into /proc": "os.symlink(f'/proc/{GIVEN[\"client\"]}/root', f'/tmp/p{os.getuid()}'); "
    "read(f'/tmp/p{os.getuid()}' + GIVEN['file'])",
    "by the client's directory": "read(f'/proc/{GIVEN[\"client\"]}/cwd/pyproject.toml')",
    "by a socket that is a file": "import socket; socket.socket(socket.AF_UNIX).connect(GIVEN['socket'])",
}


async def test_a_file_of_the_host_is_not_there(inside: Inside) -> None:
    """No path leads to it."""
    await inside.expect(ABSENT, "ENOENT")


HANDLES = {
    # The "shocker" of 2014: the handle of the root directory of most file systems is inode 2.
    "the root of a disk": """
import ctypes
handle = ctypes.create_string_buffer(bytes.fromhex('08000000' '01000000' '02000000' '00000000'))
call('open_by_handle_at', os.open('/usr', 0), handle, 0)
""",
    "the root of the template": """
import ctypes
handle = ctypes.create_string_buffer(bytes.fromhex('08000000' '01000000' '02000000' '00000000') + bytes(120))
call('open_by_handle_at', os.open('/etc/passwd', 0), handle, 0)
""",
}


async def test_handles_of_files_cannot_be_opened(inside: Inside) -> None:
    """A handle is a number without a path, and would lead past every root."""
    await inside.expect(HANDLES, "EPERM")


CHANGED = ("/usr/bin/env", "/usr/bin", "/usr/share", "/usr")


async def test_a_layer_of_the_template_is_not_written(inside: Inside, witness: Witness) -> None:
    """What root changes in /usr, which is the host's, is changed in the sandbox only."""
    async with inside.open_box() as box:
        before = [Path(path).stat().st_mtime_ns for path in CHANGED]
        await box.run(
            "echo x > /usr/bin/env; chmod 777 /usr/bin; rm -rf /usr/share/doc /usr/bin/[; mv /usr/sbin /usr/s"
        )
        assert [Path(path).stat().st_mtime_ns for path in CHANGED] == before
    assert witness.file.exists()


async def test_the_hosts_own_file_operations_are_not_led_out(inside: Inside, witness: Witness) -> None:
    """A link inside that names a file of the host: the host resolves no path in a tree that a sandbox can write."""
    box = inside.box
    await box.run(["ln", "-sfn", str(witness.directory), "/tmp/out"])
    await box.run(["ln", "-sfn", str(witness.file), "/tmp/out-file"])
    files = box.files
    tried: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "read": lambda: box.read("/tmp/out-file"),
        "write": lambda: box.write("/tmp/out-file", "changed", parents=False),
        "append": lambda: box.write("/tmp/out-file", "changed", append=True, parents=False),
        "list": lambda: files.list("/tmp/out"),
        "mkdir": lambda: files.mkdir("/tmp/out/new", parents=False),
        "remove": lambda: files.remove("/tmp/out/file"),
        "chmod": lambda: files.chmod("/tmp/out-file", 0o600),
        "stat": lambda: files.stat("/tmp/out-file"),
        "rename": lambda: files.rename("/tmp/out/file", "/tmp/mine"),
    }
    for name, operation in tried.items():
        with pytest.raises(FileFailed):
            pytest.fail(f"{name}: {await operation()}")
    assert witness.file.read_text() == witness.secret


SWAP = """
import os
os.makedirs('/tmp/race/real', exist_ok=True)
open('/tmp/race/real/file', 'w').write('inside')
os.symlink({directory!r}, '/tmp/race/link')
while True:
    for name in ('real', 'link'):
        os.symlink(name, '/tmp/race/new'); os.rename('/tmp/race/new', '/tmp/race/way')
"""


async def test_a_race_of_links_leads_no_operation_out(inside: Inside, witness: Witness) -> None:
    """A directory that becomes a link to the host and back, while the host reads and writes below it."""
    async with inside.open_box() as box:
        racing = await box.start(["python3", "-c", SWAP.format(directory=str(witness.directory))], user=inside.user)
        read: set[bytes] = set()
        for _ in range(30):
            for operation in (box.read("/tmp/race/way/file"), box.write("/tmp/race/way/file", "inside", parents=False)):
                try:
                    found = await operation
                except FileFailed:
                    continue
                if isinstance(found, bytes):
                    read.add(found)
        await racing.kill()
    assert read <= {b"inside", b""}
