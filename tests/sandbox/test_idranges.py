"""A sandbox gets ids that no other process's sandbox has."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from proofbox.errors import Refused
from proofbox.host.idmap import LOWEST, RANGE, no_range
from proofbox.host.idranges import SLOTS
from proofbox.testing.needs import skip_unless_required

FREE = 8
CODE = """
import sys
import anyio
from proofbox.errors import Refused
from proofbox.sandbox.host import Host

async def main():
    try:
        host = await Host.local(sys.argv[1])
    except Refused as refused:
        print("refused", refused)
        return
    async with host.open_sandbox("host") as box:
        print((await box.run("cat /proc/self/uid_map")).stdout.split()[1])
    await host.aclose()

anyio.run(main)
"""


def lock(file: int, first: int, count: int) -> None:
    """As another process would that has all of these."""
    if count:
        wanted = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)


@pytest.mark.skipif(bool(no_range()), reason=f"no ranges of ids: {no_range()}")
@pytest.mark.parametrize("runtime", ["native", "crun"])
@pytest.mark.parametrize("free", [0, 4321, SLOTS - FREE])
def test_a_range_that_another_process_has_is_left_alone(runtime: str, free: int, tmp_path: Path) -> None:
    """Of the whole room a few are free: for the probe, what is made ahead, and this one."""
    file = os.open(tmp_path / "ids", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock(file, 0, free)
        lock(file, free + FREE, SLOTS - free - FREE)
        ran = subprocess.run(
            [sys.executable, "-c", CODE, runtime],
            env=os.environ | {"PROOFBOX_STATE": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(file)
    if ran.stdout.startswith("refused"):
        skip_unless_required(runtime, Refused(f"runtime {runtime!r}", (ran.stdout,)))
    assert int(ran.stdout or 0) in range(LOWEST + free * RANGE, LOWEST + (free + FREE) * RANGE, RANGE), ran.stderr
