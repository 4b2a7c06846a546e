"""Commands with an id: streamed output, input, signals, terminals, the channel, connections to servers inside."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from proofbox.errors import OperationFailed
from proofbox.model.outcome import Exited, Killed, Signaled
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.commands import Command
from proofbox.testing.needs import alive, check

SERVER = """
import socket, sys
where = sys.argv[1]
if where.isdigit():
    server = socket.create_server(("127.0.0.1", int(where)))
else:
    server = socket.socket(socket.AF_UNIX)
    server.bind("\\0" + where[1:] if where[0] == "@" else where)
    server.listen()
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    with peer:
        while data := peer.recv(65536):
            peer.sendall(data.upper())
"""


async def next_line(output: AsyncIterator[tuple[int, bytes]]) -> bytes:
    """Reads stdout until a line is whole."""
    text = b""
    with anyio.fail_after(30):
        while not text.endswith(b"\n"):
            pipe, data = await anext(output)
            text += data if pipe == 1 else b""
    return text


async def first_line(job: Command) -> bytes:
    """The first line that a command printed."""
    return await next_line(job.output())


@check()
async def test_output_comes_while_the_command_runs(box: Sandbox) -> None:
    """A line can be read, answered and the answer read, in one running command."""
    job = await box.start('while read line; do echo "got $line"; done; echo over; exit 6', stdin=True)
    assert job.pid > 0
    output = job.output()
    await job.send(b"one\n")
    assert await next_line(output) == b"got one\n"
    await job.send(b"two\n")
    assert await next_line(output) == b"got two\n"
    await job.send_eof()
    result = await job.wait()
    assert result.outcome == Exited(6)


@check()
async def test_a_background_command_is_listed_until_it_ends(box: Sandbox, marker: str) -> None:
    """Each has an id of its own in the list of commands."""
    jobs = [await box.start(f"sleep {marker}") for _ in range(3)]
    listed = {job.id for job in await box.commands()}
    assert {job.id for job in jobs} <= listed
    assert len({job.id for job in jobs}) == 3
    for job in jobs:
        assert isinstance((await job.kill()).outcome, Killed)
    assert await alive(box, marker) == []


@check()
async def test_no_deadline_falls_on_a_background_command(box: Sandbox) -> None:
    """A command that was started outlives the end of other commands and their deadlines."""
    job = await box.start("sleep 0.6; echo whole")
    await box.run("sleep 30", timeout=0.2)
    result = await job.wait()
    assert (result.outcome, result.stdout) == (Exited(0), "whole\n")


@check()
async def test_killing_a_command_ends_its_whole_tree(box: Sandbox, marker: str) -> None:
    """Also what left the session by a double fork."""
    job = await box.start(f"(setsid sh -c 'sleep {marker} & sleep {marker}' &) ; echo up; sleep {marker}")
    await first_line(job)
    outcome = (await job.kill()).outcome
    assert outcome == Killed(confirmed=True)
    assert await alive(box, marker) == []


@check()
async def test_a_signal_reaches_the_command(box: Sandbox) -> None:
    """A program can handle it; one that does not dies of it."""
    job = await box.start("trap 'echo caught; exit 9' USR1; echo up; while :; do sleep 0.02; done")
    await first_line(job)
    await job.signal(10)
    result = await job.wait()
    assert result.outcome == Exited(9)
    other = await box.start("sleep 100")
    await other.signal(15)
    assert (await other.wait()).outcome == Signaled(15)


@check()
async def test_waiting_twice_gives_the_same_result(box: Sandbox) -> None:
    """The result of a command is kept for as long as its handle is."""
    job = await box.start("echo once; exit 3")
    first = await job.wait()
    assert await job.wait() == first
    assert await job.kill() == first, "killing what has ended changes nothing"


@check()
async def test_a_terminal_is_a_terminal(box: Sandbox) -> None:
    """With ``pty`` the command sees a terminal of the given size, and a resize reaches it."""
    result = await box.run("test -t 0 && test -t 1 && test -t 2 && stty size", pty=(40, 100))
    assert (result.outcome, result.stdout.strip()) == (Exited(0), "40 100")
    job = await box.start("echo up; read x; stty size", stdin=True, pty=(24, 80))
    await first_line(job)
    await job.resize(50, 132)
    await job.send(b"\n")
    assert "50 132" in (await job.wait()).stdout
    assert not (await box.run("test -t 0 || test -t 1")).ok


@check()
async def test_the_channel_is_apart_from_what_is_printed(box: Sandbox) -> None:
    """Descriptor 3 carries bytes both ways and nothing of stdout."""
    job = await box.start("echo noise; cat <&3 >&3; echo more noise", channel=True)
    await job.channel.send(b"there and back")
    got = b""
    with anyio.fail_after(30):
        while len(got) < 14:
            got += await job.channel.receive()
    await job.kill()
    assert got == b"there and back"


@pytest.mark.parametrize("where", ["18431", "@proofbox-check", "unix"])
@check(program="python3")
async def test_a_server_inside_can_be_reached_from_the_host(box: Sandbox, place: str, where: str) -> None:
    """By port, by abstract name, by path; a megabyte goes there and back, and the end is seen."""
    address = f"{place}/socket" if where == "unix" else where
    job = await box.start(["python3", "-I", "-S", "-c", SERVER, address])
    assert await first_line(job) == b"ready\n"
    connection = await box.connect(int(address) if address.isdigit() else address)
    data = b"abcd" * 262_144
    got = bytearray()

    async def receive() -> None:
        while len(got) < len(data):
            piece = await connection.receive()
            assert piece, "the connection ended early"
            got.extend(piece)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            await connection.send(data)
    await connection.aclose()
    await job.kill()
    assert bytes(got) == data.upper()


@check()
async def test_a_port_where_nobody_listens_is_an_error(box: Sandbox) -> None:
    """The connection is refused with the step that failed, and the sandbox goes on."""
    with pytest.raises(OperationFailed) as caught:
        await box.connect(18_499)
    assert caught.value.step == "connect"
    assert (await box.run("echo on")).stdout == "on\n"
