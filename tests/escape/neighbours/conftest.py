"""Another sandbox of the same runtime, alive at the same time, whose secrets and addresses are known."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

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


@pytest.fixture(scope="package")
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


@pytest.fixture
def neighbours_pid(neighbour: Sandbox) -> int:
    """What one of its processes is called on the host, where the runtime tells."""
    observed = neighbour._life.observe()
    pids = list(observed[0]) if observed else []
    return (pids or [3_999_999])[0]
