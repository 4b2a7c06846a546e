"""Sockets of the host that are files: an engine's, a session's."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.escape.conftest import HOSTS_KERNEL, Inside

from proofbox.model.spec import Volume

ATTEMPTS = {
    "by a socket that is a file": "import socket; socket.socket(socket.AF_UNIX).connect(GIVEN['socket'])",
    "an engine's": "import socket; socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
    "the system's bus": "import socket; socket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')",
    "the init's": "import socket; socket.socket(socket.AF_UNIX).connect('/run/systemd/private')",
}


async def test_no_socket_of_the_host_is_a_file_inside(inside: Inside) -> None:
    """Neither the witness's nor one that a host usually has."""
    await inside.expect(ATTEMPTS, "ENOENT")


SHARED = {
    "connect": "import socket; socket.socket(socket.AF_UNIX).connect('/vol/socket')",
}


@HOSTS_KERNEL
async def test_a_socket_in_a_volume_is_open_to_whom_its_mode_lets(inside: Inside, shared: Path) -> None:
    """Read-only does not close it (an engine's, say): the sandbox's root owns it, and gets through; others do not."""
    path = shared / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600)
        async with inside.open_box(volumes=(Volume(str(shared), "/vol"),)) as box:
            told = await inside.outcomes(SHARED, box)
    reached = "done" if inside.host.runtime_name != "microvm" else "ECONNREFUSED"  # a copy, which nobody serves
    assert told == {"connect": "EACCES" if inside.user else reached}
