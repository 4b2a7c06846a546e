"""Walking out of a root: the oldest escape, and its relatives."""

from __future__ import annotations

from tests.escape.conftest import Inside

LOOK = "\nsaid = 'host' if os.path.exists(GIVEN['file']) else 'inside' if os.path.exists('/tmp/x') else 'neither'"
DOTS = "[os.chdir('..') for _ in range(64)]"
ATTEMPTS = {
    "a directory held open across a chroot": f"""
os.makedirs('/tmp/x', exist_ok=True)
top = os.open('/', 0)
os.chroot('/tmp/x')
os.fchdir(top)
{DOTS}
os.chroot('.')
{LOOK}""",
    "a working directory outside of its root": f"""
os.makedirs('/tmp/x/y', exist_ok=True)
os.chdir('/')
os.chroot('/tmp/x/y')
{DOTS}
os.chroot('.')
{LOOK}""",
    "a directory that is moved out of the root meanwhile": f"""
os.makedirs('/tmp/x/deep/er', exist_ok=True)
top = os.open('/tmp/x', 0)
os.chroot('/tmp/x/deep')
os.chdir('/er')
os.rename('deep/er', 'er2', src_dir_fd=top, dst_dir_fd=top)
{DOTS}
os.chroot('.')
os.chdir('/tmp/x'); os.rename('er2', 'deep/er')
{LOOK}""",
    "a descriptor from a process outside the root": f"""
import socket, array
os.makedirs('/tmp/x', exist_ok=True)
one, other = socket.socketpair()
if os.fork() == 0:
    socket.send_fds(one, [b'x'], [os.open('/', 0)]); os._exit(0)
os.chroot('/tmp/x')
os.fchdir(socket.recv_fds(other, 1, 1)[1][0])
{DOTS}
os.chroot('.')
{LOOK}""",
    "the root of another process": f"""
os.makedirs('/tmp/x', exist_ok=True)
os.chroot(f'/proc/{{os.getppid()}}/root')
{DOTS}
os.chroot('.')
{LOOK}""",
}
ENDS_SHORT = {
    "a directory held open across a chroot": "neither",
    "a working directory outside of its root": "neither",
    "a descriptor from a process outside the root": "neither",
}
"""In the root that it is in, which has nothing in it."""


async def test_the_way_up_ends_at_the_sandboxes_own_root(inside: Inside) -> None:
    """Its root may change its root, and walks out of that as everywhere: to the sandbox's root, and no further."""
    await inside.expect(ATTEMPTS, "EPERM" if inside.user else "inside", gvisor=ENDS_SHORT)
