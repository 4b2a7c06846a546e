"""What a sandbox writes in these tests, and what is seen of it in another one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from proofbox.host.layers import NO_MARKS
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

DIRTY = r"""
set -e
umask 022
mkdir -p /data/dir/deep /data/sticky /data/closed
printf hello > /data/file; chmod 4751 /data/file; touch -d '2001-02-03 04:05:06.789' /data/file
printf other > /data/mine; chown 7:8 /data/mine 2>/dev/null || true
ln /data/file /data/dir/deep/again
ln -s ../file /data/dir/link; ln -s /nowhere/at/all /data/dangling
mkfifo -m 640 /data/fifo
chmod 1777 /data/sticky; printf secret > /data/closed/secret; chmod 0 /data/closed/secret; chmod 0 /data/closed
python3 -c "
import os
for name, value in (('file', b'\x00green'), ('dir', b'')):
    try: os.setxattr('/data/' + name, 'user.colour', value)
    except OSError: pass  # before Linux 6.6 files in memory have none
open(b'/data/odd \xff\n\x01name', 'w').write('odd')
with open('/data/sparse', 'wb') as f: f.seek(4 << 20); f.write(b'end'); f.truncate(8 << 20)
"
rm /etc/hosts; rm -r /etc/skel /home/user 2>/dev/null || true
rm -r /etc/apt 2>/dev/null || true; mkdir -p /etc/apt; printf new > /etc/apt/new
printf longer >> /etc/hostname; chmod 700 /etc/profile.d 2>/dev/null || true
mkdir -p /usr/local/kept 2>/dev/null && printf usr > /usr/local/kept/file || true
chmod 711 /
touch -d '2002-03-04 05:06:07' /data/dir /data /usr/local/kept/file /usr/local/kept 2>/dev/null || true
"""
"""Everything that a layer can hold: new, changed, replaced, removed, of every kind that a program may make."""

LIST = r"""
import hashlib, os, stat, sys
seen = {}
def line(path):
    s = os.lstat(path)
    what = ''
    if stat.S_ISREG(s.st_mode): what = hashlib.sha256(open(path, 'rb').read(1 << 20)).hexdigest() + f' {s.st_size}'
    if stat.S_ISLNK(s.st_mode): what = os.readlink(path)
    same = seen.setdefault(s.st_ino, path) if s.st_nlink > 1 and not stat.S_ISDIR(s.st_mode) else ''
    names = [] if stat.S_ISLNK(s.st_mode) else sorted(os.listxattr(path))
    # an overlay of the host's root shows the mark of the others
    attributes = [(n, os.getxattr(path, n)) for n in names if n != 'user.overlay.opaque']
    time = 0 if path == b'/' else s.st_mtime_ns
    return (path, oct(s.st_mode), s.st_uid, s.st_gid, time, what, same, attributes)
for top in (b'/data', b'/etc', b'/home', b'/usr/local/kept'):
    for directory, names, files in os.walk(top):
        for name in sorted(names + files):
            if name != b'machine-id': print(line(os.path.join(directory, name)))  # each sandbox has its own
    if os.path.exists(top): print(line(top))
print(oct(os.lstat('/').st_mode), os.stat('/data/sparse').st_blocks * 512 < 1 << 20)
"""


def needs_marks(host: Host) -> None:
    """Skips a test of what its sandboxes cannot do on this kernel, as the probe says."""
    if NO_MARKS in host.probe.notes:
        pytest.skip(NO_MARKS)


async def output(box: Sandbox, command: str) -> str:
    """What a command prints; it has to succeed."""
    result = await box.run(command, merge=True)
    assert result.ok, result.stdout
    return result.stdout.strip()


async def until(so: Callable[[], Awaitable[bool]]) -> None:
    """Waits until that is so; what it waits for takes milliseconds on a machine that is not busy."""
    with anyio.fail_after(30):
        while True:
            if await so():
                return
            await anyio.sleep(0.005)


async def listing(box: Sandbox) -> list[str]:
    """All that can be seen of the files that ``DIRTY`` touches."""
    result = await box.run(["python3", "-c", LIST])
    assert result.ok, result.stderr
    return result.stdout.splitlines()


def other_lines(one: list[str], two: list[str]) -> set[str]:
    """What is in one of them only: short to read when it is not empty."""
    return set(one) ^ set(two)
