"""Leases: whoever opens a file on which somebody has one waits, up to 45 seconds, on the host too."""

from __future__ import annotations

from pathlib import Path

import anyio
from tests.escape.conftest import Inside

from proofbox.model.spec import Volume

ATTEMPTS = {
    "a lease on it": "import fcntl; fcntl.fcntl(os.open('/vol/file', 0), 1024, 0)",
}


async def test_a_file_of_a_volume_is_not_locked_against_the_host(inside: Inside, shared: Path) -> None:
    """No lease is given, and the host's own programs open it for writing."""
    file = shared / "file"
    async with inside.open_box(volumes=(Volume(str(shared), "/vol"),)) as box:
        assert set((await inside.outcomes(ATTEMPTS, box)).values()).isdisjoint({"done"})
        held = await box.start(
            "exec python3 -I -S -c 'import fcntl, os, signal, time; signal.signal(29, signal.SIG_IGN)\n"
            'fcntl.fcntl(os.open("/vol/file", 0), 1024, 0)\ntime.sleep(60)\'',
            user=inside.user,
        )
        with anyio.fail_after(30):
            await anyio.to_thread.run_sync(lambda: file.open("r+").close())
        assert not (await held.kill()).ok
