"""Commands against the real guest, without isolation: outcomes, output, bad input."""

from __future__ import annotations

import signal
from typing import Any

import anyio
import pytest
from tests.sandbox.conftest import PLAIN, alive

from proofbox.errors import InvalidInput, OperationFailed, SandboxLost
from proofbox.model.limits import MIB, Limits
from proofbox.model.outcome import Exited, HitLimit, Killed, Signaled
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host


async def test_text_goes_to_a_shell_and_a_sequence_to_exec(box: Sandbox) -> None:
    """Byte for byte, both of them."""
    assert (await box.run("printf '%s|' a 'b c' $((1+2))")).stdout == "a|b c|3|"
    assert (await box.run(["printf", "%s|", "a", "b c", "$((1+2))"])).stdout == "a|b c|$((1+2))|"
    heredoc = await box.run("cat << 'EOF'\nhello $world\nEOF")
    assert heredoc.stdout == "hello $world\n"


async def test_how_a_command_ended_is_told_as_it_was(box: Sandbox) -> None:
    """An exit code, a signal, and a program that is not there, are three things."""
    assert (await box.run("exit 7")).outcome == Exited(7)
    died = await box.run(["sh", "-c", "kill -TERM $$"])
    assert died.outcome == Signaled(signal.SIGTERM)
    assert died.returncode == 143
    absent = await box.run(["no-such-program"])
    assert absent.outcome == Exited(127)
    assert "no-such-program" in absent.stderr
    assert (await box.run(["/etc/passwd"])).outcome == Exited(126)


async def test_the_environment_is_the_templates_and_what_is_added(box: Sandbox) -> None:
    """Nothing of the host's environment comes in."""
    out = (await box.run(["env"], env={"MORE": "ü", "FROM": "me"})).stdout.splitlines()
    names = {line.partition("=")[0] for line in out}
    assert names <= {"PATH", "FROM", "MORE", "HOME", "USER", "LOGNAME"}
    assert {"FROM=me", "MORE=ü"} <= set(out)


async def test_stdin_is_empty_unless_given(box: Sandbox) -> None:
    """A program that reads does not hang, and what is given arrives whole."""
    assert (await box.run("cat; read x", timeout=10)).returncode == 1
    assert (await box.run(["cat"], stdin="süß\n")).stdout == "süß\n"
    assert (await box.run(["wc", "-c"], stdin=b"a" * 3_000_000)).stdout.strip() == "3000000"


async def test_a_command_that_does_not_read_its_stdin_is_not_waited_for(box: Sandbox) -> None:
    """The rest of a big stdin is dropped when the command has ended."""
    with anyio.fail_after(10):
        assert (await box.run(["true"], stdin=b"a" * 3_000_000)).ok


async def test_a_timeout_ends_the_whole_tree_and_keeps_the_output(box: Sandbox) -> None:
    """A grandchild in a session of its own is ended too, and it is told which limit it was."""
    result = await box.run("echo partial; setsid sleep 4321 & sleep 4321", timeout=0.3)
    assert isinstance(result.outcome, HitLimit)
    assert (result.outcome.kind, result.outcome.limit, result.outcome.confirmed) == ("command_wall", 0.3, True)
    assert result.stdout == "partial\n"
    assert result.returncode is None
    assert not await alive("4321")


async def test_grace_lets_a_command_clean_up(box: Sandbox) -> None:
    """SIGTERM first; what it prints then is kept."""
    text = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    result = await box.run(text, timeout=0.3, grace=5)
    assert result.stdout == "ready\nbye\n"
    assert isinstance(result.outcome, HitLimit)


@pytest.mark.parametrize("size", [9_999, 10_000, 10_001, 300_000])
async def test_output_is_kept_from_its_head_and_counted_to_its_end(box: Sandbox, size: int) -> None:
    """What was cut is said: the total, and that it was cut."""
    result = await box.run(f"head -c {size} /dev/zero | tr '\\0' x; echo err >&2", keep=10_000)
    assert result.ok
    assert result.stdout_total == size
    assert result.stdout_bytes == b"x" * min(size, 10_000)
    assert result.truncated is (size > 10_000)
    assert result.stderr == "err\n"


async def test_bytes_that_are_no_text_are_kept(box: Sandbox) -> None:
    """The raw bytes are the record; text is a view of them."""
    result = await box.run(["printf", "a\\342b"])
    assert result.stdout_bytes == b"a\xe2b"
    assert result.stdout == "a\ufffdb"


async def test_merged_output_is_in_order(box: Sandbox) -> None:
    """One stream, as on a terminal."""
    result = await box.run("echo a; echo b >&2; echo c", merge=True)
    assert (result.stdout, result.stderr) == ("a\nb\nc\n", "")


async def test_a_terminal_has_the_size_that_was_asked_for(box: Sandbox) -> None:
    """And is one."""
    result = await box.run("stty size; test -t 0 && test -t 1 && echo tty", pty=(33, 101))
    assert result.stdout.split() == ["33", "101", "tty"]


async def test_what_stays_in_the_background_is_counted_and_not_waited_for(box: Sandbox) -> None:
    """The command's own end is the end, though a child holds its pipe."""
    with anyio.fail_after(10):
        result = await box.run("sleep 5432 & echo started")
    assert result.ok
    assert result.stdout == "started\n"
    assert result.left_running == 1
    assert result.held_open
    assert await alive("5432")
    assert await box.kill_all() >= 1
    assert not await alive("5432")


async def test_output_limit_ends_the_command(process_host: Host) -> None:
    """It is a limit of its own kind, with what was written."""
    async with process_host.open_sandbox(PLAIN, limits=Limits(output=MIB)) as box:
        with anyio.fail_after(20):
            result = await box.run(["yes"], keep=1000)
    assert isinstance(result.outcome, HitLimit)
    assert (result.outcome.kind, result.outcome.limit) == ("output", MIB)
    assert len(result.stdout_bytes) == 1000


async def test_limits_of_a_process_are_set(process_host: Host) -> None:
    """Open files and address space come from this layer, at every runtime."""
    limits = Limits(open_files=77, process_memory=500 * MIB, command_wall=0.4)
    async with process_host.open_sandbox(PLAIN, limits=limits) as box:
        assert (await box.run("ulimit -n; ulimit -v")).stdout.split() == ["77", str(500 * 1024)]
        slow = await box.run("sleep 9")
    assert isinstance(slow.outcome, HitLimit)
    assert slow.outcome.limit == 0.4


async def test_the_wall_limit_ends_the_sandbox(process_host: Host) -> None:
    """What runs is told so as an outcome, with its output; what comes later as an error."""
    async with process_host.open_sandbox(PLAIN, limits=Limits(wall=0.5)) as box:
        result = await box.run("echo begun; sleep 60")
        assert isinstance(result.outcome, HitLimit)
        assert result.outcome.kind == "wall"
        assert result.stdout == "begun\n"
        with pytest.raises(SandboxLost, match="wall limit") as caught:
            await box.run("true")
        assert caught.value.reason == "wall"


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("", {}),
        ("   \n", {}),
        ([], {}),
        ([""], {}),
        ("a\0b", {}),
        (["a", "b\0c"], {}),
        (b"raw", {}),
        ([1], {}),
        ("true", {"env": {"": "x"}}),
        ("true", {"env": {"A=B": "x"}}),
        ("true", {"env": {"A": "x\0"}}),
        ("true", {"cwd": ""}),
        ("true", {"cwd": "/a\0"}),
        ("true", {"user": "a:b:c"}),
        ("true", {"timeout": 0}),
        ("true", {"timeout": -1}),
        ("true", {"timeout": float("nan")}),
        ("true", {"timeout": float("inf")}),
        ("true", {"grace": -1}),
        ("true", {"keep": -1}),
        ("true", {"pty": (0, 80)}),
        ("true", {"stdin": 7}),
        ("\ud800", {}),
        ("x" * (17 << 20), {}),
        (["x"] * 70_000, {}),
    ],
)
async def test_a_command_that_makes_no_sense_is_invalid(box: Sandbox, command: Any, options: dict[str, Any]) -> None:
    """Nothing is sent, and the sandbox is as good as before."""
    with pytest.raises(InvalidInput):
        await box.run(command, **options)
    assert (await box.run("true")).ok


async def test_long_commands_arrive(box: Sandbox) -> None:
    """200 KB of shell text is more than the kernel takes in one argument."""
    result = await box.run("x='" + "y" * 200_000 + "'; echo ${#x}")
    assert result.stdout == "200000\n"


@pytest.mark.parametrize(("options", "step"), [({"user": "no-such-user"}, "user"), ({"cwd": "/no/such"}, "cwd")])
async def test_what_cannot_start_is_no_exit_code(box: Sandbox, options: dict[str, Any], step: str) -> None:
    """It is an error that names the step, not a result that a program could have had."""
    if step == "user" and not box.host.probe.users:
        pytest.skip("sandboxes have one user here, so that another one is refused before anything starts")
    with pytest.raises(OperationFailed) as caught:
        await box.run("true", **options)
    assert caught.value.step == step


async def test_a_started_command_is_talked_to(box: Sandbox) -> None:
    """Its stdin, its output as it comes, its end; again and again the same result."""
    command = await box.start("while read x; do echo got $x; done; exit 3", stdin=True)
    assert command.pid > 0
    seen = b""
    await command.send("one\n")
    async for pipe, data in command.output():
        assert pipe == 1
        seen += data
        if seen == b"got one\n":
            await command.send(b"two\n")
            await command.send_eof()
            await command.send_eof()
    assert seen == b"got one\ngot two\n"
    result = await command.wait()
    assert result.outcome == Exited(3)
    assert result.stdout_bytes == seen
    assert await command.wait() is result
    assert await box.commands() == [command]
    assert await command.send("late") is False


async def test_a_started_command_is_signalled_and_killed(box: Sandbox) -> None:
    """A signal is the program's to take; a kill is not."""
    polite = await box.start("trap 'exit 9' USR1; while :; do sleep 0.01; done")
    await anyio.sleep(0.1)
    await polite.signal(signal.SIGUSR1)
    assert (await polite.wait()).outcome == Exited(9)
    stubborn = await box.start("trap '' TERM; sleep 6543")
    assert (await stubborn.kill()).outcome == Killed(confirmed=True)
    assert not await alive("6543")


async def test_flowing_output_waits_for_its_reader(box: Sandbox) -> None:
    """Without ``keep`` a flood fills nobody's memory: the command waits until somebody reads."""
    command = await box.start("head -c 3000000 /dev/zero; echo end >&2", keep=None)
    await anyio.sleep(0.2)
    assert not command.over
    total = 0
    async for pipe, data in command.output():
        total += len(data) if pipe == 1 else 0
    assert total == 3_000_000
    assert (await command.wait()).stdout_total == 3_000_000


async def test_a_channel_is_a_socket_of_the_command(box: Sandbox) -> None:
    """Both ways on descriptor 3, apart from stdin and stdout; its end is seen on both sides."""
    command = await box.start("cat <&3 >&3", channel=True)
    channel = command.channel
    await channel.send(b"ping")
    assert await channel.receive() == b"ping"
    await channel.send_eof()
    assert await channel.receive() == b""
    assert (await command.wait()).outcome == Exited(0)
    with pytest.raises(InvalidInput, match="channel=True"):
        _ = (await box.start("true")).channel


async def test_a_server_inside_is_reached(box: Sandbox) -> None:
    """By port and by path; a port where nobody listens is an error with its errno."""
    code = (
        "import socket,sys\ns=socket.socket(socket.AF_UNIX); s.bind('srv'); s.listen()\nprint('up', flush=True)\n"
        "c,_=s.accept(); c.sendall(c.recv(100).upper()); c.close()"
    )
    server = await box.start(["python3", "-c", code])
    async for _ in server.output():
        break
    path = (await box.run(["pwd"])).stdout.strip() + "/srv"
    async with await box.connect(path) as connection:
        await connection.send(b"hello")
        assert await connection.receive() == b"HELLO"
        assert await connection.receive() == b""
    with pytest.raises(OperationFailed) as caught:
        await box.connect(1)
    assert caught.value.step == "connect"


async def test_many_commands_at_once(box: Sandbox) -> None:
    """They share one channel and do not mix."""
    results: dict[int, str] = {}

    async def one(number: int) -> None:
        results[number] = (await box.run(f"echo {number}; sleep 0.0{number % 5}; echo {number}")).stdout

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(one, number)
    assert results == {number: f"{number}\n{number}\n" for number in range(40)}
