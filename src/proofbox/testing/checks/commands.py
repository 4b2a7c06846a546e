"""How programs are started and how they end."""

from __future__ import annotations

import signal

import anyio
import pytest

from proofbox.errors import OperationFailed, Refused
from proofbox.model.outcome import Exited, Killed, Signaled
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.result import CommandResult
from proofbox.testing.needs import OpenBox, alive, check


@pytest.mark.parametrize("code", [0, 1, 2, 70, 126, 127, 128, 143, 255])
@check()
async def test_the_exit_code_is_the_programs_own(box: Sandbox, code: int) -> None:
    """Every exit code comes through as it is, those that look like signals or shell errors too."""
    result = await box.run(f"exit {code}")
    assert (result.outcome, result.returncode, result.ok) == (Exited(code), code, code == 0)


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "HUP", "PIPE"])
@check()
async def test_death_by_a_signal_is_told_from_an_exit(box: Sandbox, name: str) -> None:
    """A signal is a signal, and reads 128 + n where a single number is wanted."""
    number = signal.Signals[f"SIG{name}"].value
    result = await box.run(f"kill -{name} $$")
    assert (result.outcome, result.returncode) == (Signaled(number), 128 + number)


@pytest.mark.parametrize("reader", ["cat", "wc -c", "read x; echo $?", "timeout 3 cat"])
@check()
async def test_stdin_is_empty_unless_it_is_given(box: Sandbox, reader: str) -> None:
    """A program that reads its stdin meets the end of the file, not a silence."""
    result = await box.run(reader, timeout=30)
    assert isinstance(result.outcome, Exited)
    assert result.stdout.strip() in ("", "0", "1")


@check()
async def test_a_heredoc_reaches_the_shell_byte_for_byte(box: Sandbox, place: str) -> None:
    """A heredoc that ends with the text's last byte works, without a wrapper glued to it."""
    result = await box.run(f"cat << 'EOF' > {place}/t\nhello $HOME `x` \\n 'q'\nEOF")
    assert result.ok, result.stderr
    assert await box.read(f"{place}/t") == b"hello $HOME `x` \\n 'q'\n"


@pytest.mark.parametrize("text", ["echo a # comment", "echo a;", "echo a\n", "echo a &\nwait", "(echo a)"])
@check()
async def test_shell_text_may_end_in_anything(box: Sandbox, text: str) -> None:
    """A comment, a semicolon, a newline or a parenthesis at the end changes nothing."""
    assert (await box.run(text)).stdout == "a\n"


@check()
async def test_shell_text_of_200_kb_runs(box: Sandbox) -> None:
    """Text longer than the kernel takes in one argument is run all the same."""
    result = await box.run(": '" + "x" * 200_000 + '\'\necho "done $0" >&2; exit 5')
    assert result.outcome == Exited(5), result.stderr
    assert result.stderr.startswith("done ")


@check()
async def test_a_megabyte_of_arguments_arrives(box: Sandbox) -> None:
    """Sixteen arguments of 64 KiB come out as they went in."""
    result = await box.run(["printf", "%s", *(["x" * 65_536] * 16)])
    assert result.stdout_bytes == b"x" * 65_536 * 16


@check()
async def test_arguments_are_passed_untouched(box: Sandbox) -> None:
    """No shell looks at an argv."""
    words = ["a b", "$HOME", "*", "", "'\"\\", "new\nline", "-n"]
    result = await box.run(["printf", "%s|", *words])
    assert result.stdout == "".join(f"{word}|" for word in words)


@check()
async def test_a_missing_program_is_127_with_a_message(box: Sandbox) -> None:
    """It looks as in a shell, whether a shell was asked for or not."""
    for command in ("no-such-program-here", ["no-such-program-here"]):
        result = await box.run(command)
        assert result.outcome == Exited(127)
        assert "no-such-program-here" in result.stderr
        assert "not found" in result.stderr.lower() or "no such file" in result.stderr.lower()


@check()
async def test_a_file_that_is_no_program_is_126(box: Sandbox, place: str) -> None:
    """A file without permission to execute is told from a missing one."""
    await box.write(f"{place}/data", b"hello", mode=0o644)
    result = await box.run([f"{place}/data"])
    assert result.outcome == Exited(126)
    assert "data" in result.stderr


@check()
async def test_the_environment_is_what_was_given(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values arrive untouched, and nothing of the host's environment is there."""
    monkeypatch.setenv("PROOFBOX_CANARY", "secret-of-the-host")
    result = await box.run(["env", "-0"], env={"A": "x y\n$z", "EMPTY": ""})
    pairs = dict(line.split("=", 1) for line in result.stdout.split("\0") if line)
    assert (pairs["A"], pairs["EMPTY"]) == ("x y\n$z", "")
    assert "secret-of-the-host" not in result.stdout
    assert "PATH" in pairs


@check()
async def test_the_working_directory_is_what_was_given(box: Sandbox, place: str) -> None:
    """``cwd`` counts for a command, and relative paths start there."""
    await box.files.mkdir(f"{place}/sub dir")
    assert (await box.run("pwd", cwd=f"{place}/sub dir")).stdout == f"{place}/sub dir\n"
    await box.run("echo x > here", cwd=f"{place}/sub dir")
    assert await box.read(f"{place}/sub dir/here") == b"x\n"


@check()
async def test_a_missing_working_directory_is_an_error_not_an_exit_code(box: Sandbox) -> None:
    """What failed before the program ran is told from what the program did, and names the directory."""
    with pytest.raises(OperationFailed, match="/no/such/place") as caught:
        await box.run("echo never", cwd="/no/such/place")
    assert caught.value.step == "cwd"


@check(users=True)
async def test_commands_run_as_the_user_that_was_named(box: Sandbox) -> None:
    """By name, by number, with a group; the home and the name follow."""
    assert (await box.run("id -u; id -un", user="nobody")).stdout == "65534\nnobody\n"
    assert (await box.run("id -u", user="root")).stdout == "0\n"
    assert (await box.run("id -u; id -g; id -G", user="1234:2345")).stdout == "1234\n2345\n2345\n"
    assert (await box.run("echo $USER", user="nobody")).stdout == "nobody\n"


@check(level="container")
async def test_root_needs_no_entry(open_box: OpenBox) -> None:
    """Images of a single program have no /etc/passwd, and a program may have removed it: the next command runs."""
    async with open_box() as box:
        await box.run("mv /etc/passwd /etc/passwd.away")
        found = await box.run("id -u; echo $HOME; pwd", user="root")
        assert found.stdout == "0\n/\n/\n"
        assert await box.files.read("/etc/hosts")
        assert (await box.run("mv /etc/passwd.away /etc/passwd; echo $HOME")).stdout == "/\n"
        assert (await box.run("echo $HOME")).stdout == "/root\n"


@check(level="container", users=True)
async def test_a_number_without_an_entry_is_at_home_in_the_root(box: Sandbox) -> None:
    """As at other engines: programs that look for $HOME find a directory."""
    assert (await box.run("echo $HOME; pwd", user="12345")).stdout == "/\n/\n"


@check()
async def test_an_unknown_user_is_an_error_that_names_it(box: Sandbox) -> None:
    """Nothing runs as somebody else instead."""
    with pytest.raises((OperationFailed, Refused), match="no-such-user") as caught:
        await box.run("echo never", user="no-such-user")
    assert isinstance(caught.value, Refused) or getattr(caught.value, "step", "") == "user"


@check()
async def test_a_command_inherits_nothing_of_the_guest(box: Sandbox) -> None:
    """No descriptor but the three, umask 022."""
    found = await box.run(["ls", "/proc/self/fd"])
    assert found.stdout.split() == ["0", "1", "2", "3"], "3 is the directory that ls reads"
    assert (await box.run("umask")).stdout == "0022\n"


@check(as_linux=("status",))
async def test_a_command_inherits_no_signals(box: Sandbox) -> None:
    """None is ignored or blocked."""
    status = await box.run("grep -E '^Sig(Blk|Ign)' /proc/self/status")
    assert status.stdout.split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16]


@check()
async def test_a_background_child_that_holds_the_output_does_not_hold_the_call(box: Sandbox, marker: str) -> None:
    """The result is there when the command has exited; the child runs on and is reported."""
    result = await box.run(f"sleep {marker} & echo $!", timeout=60)
    assert result.outcome == Exited(0)
    assert result.held_open
    assert result.left_running is None or result.left_running >= 1
    assert len(await alive(box, marker)) == 1
    await box.run(f"kill -9 {result.stdout.strip()}")
    again = await box.run(f"nohup sh -c 'sleep {marker} > /dev/null 2>&1 &'", timeout=60)
    assert again.outcome == Exited(0)
    assert not again.held_open
    assert len(await alive(box, marker)) == 1
    await box.kill_all()
    assert await alive(box, marker) == []


@check()
async def test_commands_run_at_the_same_time_and_keep_apart(box: Sandbox) -> None:
    """Thirty commands at once get each their own output."""
    results: dict[int, CommandResult] = {}

    async def one(number: int) -> None:
        results[number] = await box.run(f"sleep 0.0{number % 5}; echo {number}; echo e{number} >&2; exit {number}")

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(one, number)
    for number, result in results.items():
        assert (result.stdout, result.stderr, result.returncode) == (f"{number}\n", f"e{number}\n", number)


@check()
async def test_an_operation_id_runs_once(box: Sandbox, place: str) -> None:
    """The same id again gives the first answer, and nothing happens twice."""
    first = await box.run(f"echo x >> {place}/log; echo $$", op="check-once")
    again = await box.run(f"echo x >> {place}/log; echo $$", op="check-once")
    assert again.stdout == first.stdout
    assert await box.read(f"{place}/log") == b"x\n"


@check()
async def test_large_stdin_is_counted_to_the_byte(box: Sandbox) -> None:
    """48 MiB on stdin are 48 MiB inside."""
    size = 48 << 20
    assert (await box.run(["wc", "-c"], stdin=b"a" * size)).stdout.strip() == str(size)


@check()
async def test_stdin_that_nobody_reads_is_no_error(box: Sandbox) -> None:
    """A command that ends without reading its input has its own exit code."""
    result = await box.run("exit 4", stdin=b"x" * (4 << 20), timeout=60)
    assert result.outcome == Exited(4)


@check()
async def test_empty_stdin_is_an_end_of_file(box: Sandbox) -> None:
    """An empty input is an input."""
    assert (await box.run("cat; echo end", stdin=b"", timeout=60)).stdout == "end\n"


@check()
async def test_killing_everything_leaves_the_sandbox_usable(box: Sandbox, marker: str) -> None:
    """``kill_all`` ends every process but the guest, those that left their session too."""
    job = await box.start(f"sleep {marker}")
    await box.run(f"setsid sh -c 'sleep {marker} & sleep {marker}' > /dev/null 2>&1 &")
    assert len(await alive(box, marker)) >= 3
    assert await box.kill_all() >= 3
    assert isinstance((await job.wait()).outcome, Killed | Signaled)
    assert await alive(box, marker) == []
    assert (await box.run("echo on")).stdout == "on\n"
