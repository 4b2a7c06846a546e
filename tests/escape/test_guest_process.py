"""The guest, and what belongs to it: whoever takes it over speaks to the host in its name."""

from __future__ import annotations

import anyio
from tests.escape.conftest import Inside

from proofbox.model.outcome import Exited

EVERY = """
said = 'nobody is there'
for pid in others():
    try:
        {}
        said = f'worked on {{pid}}'
        break
    except (PermissionError, ProcessLookupError, FileNotFoundError) as error:
        said = errno.errorcode[error.errno]
"""
ADDRESSES = (
    "import ctypes; b = ctypes.create_string_buffer(8); v = (ctypes.c_ulong * 2)(ctypes.addressof(b), 8)\n        "
)
ATTEMPTS = {
    name: EVERY.format(attempt)
    for name, attempt in {
        "attach": "call('ptrace', 16, pid, 0, 0)",
        "seize": "call('ptrace', 0x4206, pid, 0, 0)",
        "read its memory": ADDRESSES + "call('process_vm_readv', pid, v, 1, v, 1, 0)",
        "write its memory": ADDRESSES + "call('process_vm_writev', pid, v, 1, v, 1, 0)",
        "open its memory": "os.open(f'/proc/{pid}/mem', os.O_RDWR)",
        "its memory map": "read(f'/proc/{pid}/maps')",
        "its environment": "read(f'/proc/{pid}/environ')",
        "its auxiliary vector": "read(f'/proc/{pid}/auxv')",
        "its stack": "read(f'/proc/{pid}/stack')",
        "its descriptors": "os.readlink(f'/proc/{pid}/fd/3')",
        "its channel, by name": "os.open(f'/proc/{pid}/fd/3', os.O_RDWR)",
        "its channel, by pidfd": "call('pidfd_getfd', call('pidfd_open', pid, 0), 3, 0)",
        "comparing its descriptors with ours": "call('kcmp', pid, os.getpid(), 0, 3, 0)",
        "its root": "os.listdir(f'/proc/{pid}/root/')",
        "its working directory": "os.listdir(f'/proc/{pid}/cwd/')",
        "its program": "os.open(f'/proc/{pid}/exe', os.O_RDONLY)",
        "its namespaces": "os.open(f'/proc/{pid}/ns/mnt', os.O_RDONLY)",
        "its pages, moved": "call('move_pages', pid, 0, 0, 0, 0, 0)",
        "its memory, given back": "call('process_mrelease', call('pidfd_open', pid, 0), 0)",
        "its name": "write(f'/proc/{pid}/comm', 'x')",
    }.items()
}


async def test_the_guest_cannot_be_reached_into(inside: Inside) -> None:
    """Not dumpable and with more capabilities than anybody inside: as its own user, too, nobody gets at it."""
    await inside.expect(ATTEMPTS, "EPERM", "EACCES", "EINVAL")
    assert (await inside.box.run("echo on")).stdout == "on\n"


SEARCH = {
    "inherited": "said = sorted(set(os.listdir('/proc/self/fd')) - {'0', '1', '2'})",
    "sockets of ours": """
links = [os.readlink(f'/proc/self/fd/{fd}') for fd in range(64) if os.path.lexists(f'/proc/self/fd/{fd}')]
said = [link for link in links if link.startswith('socket')]
""",
    "sockets with names": """
said = [line.split()[7] for line in read('/proc/net/unix').splitlines()[1:] if len(line.split()) > 7]
""",
    "listening ports": "said = read('/proc/net/tcp').splitlines()[1:] + read('/proc/net/tcp6').splitlines()[1:]",
}


async def test_the_channel_is_not_to_be_found(inside: Inside) -> None:
    """No descriptor of it is inherited, and it has neither a name nor a port that could be guessed."""
    told = await inside.outcomes(SEARCH)
    assert told.pop("inherited").count(",") <= 1  # the pipe of the attempt, and the listing of the directory
    assert set(told.values()) == {"[]"}


async def test_printed_frames_are_only_printed(inside: Inside) -> None:
    """Bytes that look like an end, a hello or a fatal error are output like any others."""
    frames = b"".join(bytes([4, 0, 0, 0, kind, 0, 0, 0, 0, 0, 0, 0]) for kind in range(256)) * 4
    text = f"import os; os.write(1, {frames!r}); os.write(2, {frames!r}); raise SystemExit(7)"
    result = await inside.box.run(["python3", "-I", "-S", "-c", text], user=inside.user)
    assert (result.outcome, result.stdout_bytes, result.stderr_bytes) == (Exited(7), frames, frames)


async def test_killing_a_supervisor_forges_nothing(inside: Inside) -> None:
    """Root inside can kill a command's supervisor: it loses its own command, and no failure becomes a success."""
    if inside.user is not None:
        told = await inside.outcomes({"kill": EVERY.format("os.kill(pid, 9)")})
        assert told == {"kill": "EPERM"}
        return
    async with inside.open_box() as box:
        with anyio.fail_after(60):
            wanted = await box.run("kill -9 $PPID; sleep 5; exit 3", timeout=10)
            assert not wanted.ok
        assert (await box.run("echo on")).stdout == "on\n"
