"""Another sandbox of the same runtime, alive at the same time, whose secrets and addresses are known."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.escape.conftest import Inside

from proofbox.host.seccomp.policy import machine, numbers
from proofbox.model.template import Template
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

SERVER = """
import ctypes, mmap, os, socket, sys, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for place in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/dev'):
    open(place + '/neighbour', 'w').write('neighbour')
    os.chmod(place + '/neighbour', 0o666)
shared = libc.shmget(4711, 4096, 0o1666)
ctypes.memmove(libc.shmat(shared, None, 0), b'neighbour', 9)
libc.semget(4712, 1, 0o1666)
libc.msgget(4713, 0o1666)
libc.syscall({mq_open}, b'neighbour', 0o102, 0o666, None)
abstract = socket.socket(socket.AF_UNIX); abstract.bind('\\0neighbour'); abstract.listen()
tcp = socket.create_server(('127.0.0.1', 4714))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('127.0.0.1', 4715))
udp.settimeout(0)
print('ready', flush=True)
sys.stdin.readline()
tcp.settimeout(0); abstract.settimeout(0)
for listener in (tcp, abstract):
    try:
        listener.accept(); print('somebody came', flush=True)
    except OSError:
        pass
try:
    udp.recv(1); print('somebody wrote', flush=True)
except OSError:
    pass
print('done', flush=True)
"""
ATTEMPTS = {
    **{
        f"a file in {place}": f"read('{place}/neighbour')" for place in ("/tmp", "/var/tmp", "/dev/shm", "/run", "/dev")
    },
    "shared memory": "call('shmget', 4711, 0, 0)",
    "all shared memory": "said = read('/proc/sysvipc/shm').splitlines()[1:] or 'none'",
    "a semaphore": "call('semget', 4712, 0, 0)",
    "a message queue": "call('msgget', 4713, 0)",
    "a POSIX message queue": "call('mq_open', b'neighbour', 2, 0, 0)",
    "an abstract socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0neighbour')",
    "a port": "import socket; socket.create_connection(('127.0.0.1', 4714), 5)",
    "a datagram": """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.connect(('127.0.0.1', 4715)); udp.send(b'x'); udp.send(b'x')
""",
    "a file of its process": "read(f'/proc/{GIVEN[\"neighbour\"]}/root/tmp/neighbour')",
    "its process": "os.kill(GIVEN['neighbour'], 9)",
    "its program": "said = [pid for pid in others() if 'ready' in read(f'/proc/{pid}/cmdline')] or 'none'",
    "locks on files": "said = read('/proc/locks') or 'none'",
}


def pids_of(box: Sandbox) -> list[int]:
    """What its processes are called on the host, where the runtime tells."""
    observed = box._life.observe()
    return list(observed[0]) if observed else []


@pytest.fixture(scope="module")
async def neighbour(host: Host, template: Template | str, anyio_backend: str) -> AsyncIterator[Sandbox]:
    """Has something of everything, and says at the end whether somebody came."""
    async with host.open_sandbox(template) as box:
        text = SERVER.replace("{mq_open}", str(numbers(machine())["mq_open"]))
        running = await box.start(["python3", "-I", "-S", "-c", text], stdin=True, keep=None)
        async for _, data in running.output():
            assert data == b"ready\n", data
            break
        yield box
        await running.send("\n")
        told = b"".join([data async for _, data in running.output()])
        assert told == b"done\n"


async def test_a_neighbour_is_not_there(inside: Inside, neighbour: Sandbox) -> None:
    """Its files, memory, queues, names and ports are its own."""
    pid = (pids_of(neighbour) or [3_999_999])[0]
    await inside.expect(ATTEMPTS, "ENOENT", "ECONNREFUSED", "ESRCH", "none", neighbour=pid)


async def test_a_neighbour_that_was_destroyed_leaves_nothing(inside: Inside) -> None:
    """A new sandbox finds no file, object, key or port of the one before it."""
    async with inside.open_box() as first:
        await first.run(
            "echo x > /tmp/left; echo x > /dev/shm/left; echo x > /etc/left; nohup sleep 60 > /dev/null 2>&1 &"
        )
        await inside.outcomes({"shared": "call('shmget', 4721, 4096, 0o1666)"}, first)
    async with inside.open_box() as second:
        found = await second.run("cat /tmp/left /dev/shm/left /etc/left; pgrep sleep; tail -n +2 /proc/sysvipc/shm")
    assert found.stdout == ""
