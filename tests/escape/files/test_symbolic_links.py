"""Symbolic links that name a file of the host, for the sandbox itself and for what the host does in it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.escape.conftest import Inside, Witness

from proofbox.errors import FileFailed

ATTEMPTS = {
    "by a link": "os.symlink(GIVEN['file'], f'/tmp/l{os.getuid()}'); read(f'/tmp/l{os.getuid()}')",
}


async def test_a_link_leads_nowhere(inside: Inside) -> None:
    """It is followed inside."""
    await inside.expect(ATTEMPTS, "ENOENT")


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
