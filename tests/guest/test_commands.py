"""Commands: how they start, what they get, how they end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from proofbox.wire import frames, guest

from .driver import PATIENCE, Guest, alive, vanished


def test_argv_runs_as_it_is(guest_process: Guest) -> None:
    """Arguments of any bytes arrive as they are; nothing is a shell's."""
    args = (b"/usr/bin/printf", b"%s|", b"a b", b"$HOME", b"\xff\xfe", b"")
    stream = guest_process.start(guest.Run(kind=guest.ARGV, args=args))
    end = guest_process.end(stream)
    assert (end.how, end.code, end.left) == (guest.EXITED, 0, 0)
    assert guest_process.out(stream) == b"a b|$HOME|\xff\xfe||"
    assert end.produced == (14, 0, 0)


def test_shell_text_streams_and_exit_code(guest_process: Guest) -> None:
    """A shell text has its own stdout and stderr, and its exit code is told."""
    stream = guest_process.shell("echo out; echo err >&2; exit 7")
    end = guest_process.end(stream)
    assert (end.how, end.code) == (guest.EXITED, 7)
    assert (guest_process.out(stream), guest_process.out(stream, 2)) == (b"out\n", b"err\n")
    assert {(stream, 1), (stream, 2)} <= guest_process.eof


def test_shell_text_of_200_kb_runs(guest_process: Guest) -> None:
    """Text above the kernel's limit for one argument runs from a memory file."""
    text = ": " + "x" * 200_000 + "\necho done"
    stream = guest_process.shell(text)
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == b"done\n"


def test_a_signal_is_told_as_a_signal(guest_process: Guest) -> None:
    """A command that a signal ends is not confused with an exit code."""
    end = guest_process.end(guest_process.shell("kill -SEGV $$"))
    assert (end.how, end.code) == (guest.SIGNALED, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("no-such-program",), 127, b"no-such-program: not found"),
        (("/tmp",), 126, b"/tmp: Permission denied"),
        (("/etc/passwd",), 126, b"/etc/passwd: Permission denied"),
        (("/etc/passwd/x",), 127, b"/etc/passwd/x: Not a directory"),
        (("",), 127, b": not found"),
    ],
)
def test_what_cannot_be_executed_ends_as_in_a_shell(
    guest_process: Guest, args: tuple[str, ...], code: int, message: bytes
) -> None:
    """127 or 126 and a line on stderr."""
    stream = guest_process.argv(*args)
    assert guest_process.end(stream).code == code
    assert message in guest_process.out(stream, 2)


def test_a_script_without_interpreter_line_is_run_by_sh(guest_process: Guest, tmp_path: Path) -> None:
    """As every shell does with an executable text."""
    script = tmp_path / "script"
    script.write_text('echo "$1"\n')
    script.chmod(0o755)
    stream = guest_process.argv(str(script), "arg")
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == b"arg\n"


def test_the_environment_is_exactly_the_given_one_and_the_users(guest_process: Guest) -> None:
    """HOME, USER and LOGNAME are added where absent, nothing else comes from the guest."""
    stream = guest_process.start(guest.Run(kind=guest.ARGV, args=(b"/usr/bin/env",), env=(b"A=1", b"HOME=/x")))
    guest_process.end(stream)
    names = dict(line.split(b"=", 1) for line in guest_process.out(stream).splitlines())
    assert names.pop(b"A") == b"1"
    assert names.pop(b"HOME") == b"/x"
    assert set(names) <= {b"USER", b"LOGNAME"}


def test_stdin_arrives_and_ends(guest_process: Guest) -> None:
    """A megabyte goes in and comes out again, within the credit, and EOF ends it."""
    data = os.urandom(1 << 20)
    stream = guest_process.argv("cat", stdin=True)
    guest_process.feed(stream, data)
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == data


def test_stdin_is_empty_unless_asked_for(guest_process: Guest) -> None:
    """Without stdin a program that reads it gets the end at once."""
    stream = guest_process.argv("cat")
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == b""


def test_stdin_that_nobody_reads_does_not_stall_the_host(guest_process: Guest) -> None:
    """A command that closes stdin gives the credit back; the stream ends as usual."""
    stream = guest_process.shell("exec <&-; sleep 0.1; echo ok", stdin=True)
    guest_process.feed(stream, b"z" * 400_000)
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == b"ok\n"


def test_merge_keeps_the_order(guest_process: Guest) -> None:
    """With merge stderr goes down the stdout pipe, in order."""
    stream = guest_process.shell("echo 1; echo 2 >&2; echo 3", merge=True)
    guest_process.end(stream)
    assert guest_process.out(stream) == b"1\n2\n3\n"
    assert guest_process.out(stream, 2) == b""


def test_cwd_and_what_is_refused(guest_process: Guest) -> None:
    """A missing directory and an unknown user are refusals with their step, not exit codes."""
    stream = guest_process.argv("pwd", cwd=b"/usr/bin")
    guest_process.end(stream)
    assert guest_process.out(stream) == b"/usr/bin\n"
    refused = guest_process.refused(guest_process.argv("pwd", cwd=b"/no/such"))
    assert (refused.step, refused.errno) == (b"cwd", 2)
    refused = guest_process.refused(guest_process.argv("pwd", user=b"no-such-user"))
    assert (refused.step, refused.errno) == (b"user", 2)


@pytest.mark.parametrize(
    "run",
    [
        guest.Run(kind=3, args=(b"x",)),
        guest.Run(kind=guest.ARGV),
        guest.Run(kind=guest.SHELL, args=(b"a", b"b")),
        guest.Run(kind=guest.ARGV, args=(b"x",), env=(b"NOVALUE",)),
        guest.Run(kind=guest.FILE, file_op=guest.READ),
        guest.Run(kind=guest.FILE, file_op=99, path=b"/"),
        guest.Run(kind=guest.FILE, file_op=guest.RENAME, path=b"/x"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused(guest_process: Guest, run: guest.Run) -> None:
    """Well-formed nonsense is refused with step `field`, and the guest goes on."""
    assert guest_process.refused(guest_process.start(run)).step == b"field"
    assert guest_process.end(guest_process.argv("true")).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_user_is_become_with_its_groups(guest_process: Guest) -> None:
    """uid, gid and groups are the user's; a number without an entry works; uid:gid is taken as it is."""
    for user, wanted in ((b"nobody", "65534:65534"), (b"4242", "4242:0"), (b"4242:4343", "4242:4343")):
        stream = guest_process.shell('echo "$(id -u):$(id -g) $(id -G)"', user=user)
        assert guest_process.end(stream).code == 0
        ids, groups = guest_process.out(stream).decode().split(" ", 1)
        assert ids == wanted
        assert groups.split() == [wanted.split(":")[1]]


def test_signals_and_mask_are_the_defaults(guest_process: Guest) -> None:
    """Nothing is blocked or ignored in a command, whatever the guest and Python ignore."""
    stream = guest_process.argv("grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status")
    guest_process.end(stream)
    assert [line.split()[1] for line in guest_process.out(stream).splitlines()] == [b"0" * 16] * 2


def test_nothing_of_the_guest_is_open_in_a_command(guest_process: Guest) -> None:
    """A command has 0, 1 and 2, and no descriptor of the guest."""
    stream = guest_process.argv("ls", "/proc/self/fd")
    guest_process.end(stream)
    assert guest_process.out(stream).split() == [b"0", b"1", b"2", b"3"]  # 3 is the directory that ls reads


def test_rlimits_are_set_and_lowered_to_the_hard_limit(guest_process: Guest) -> None:
    """A limit below is set; one above the hard limit in force becomes that."""
    stream = guest_process.shell("ulimit -n; ulimit -Hn", rlimits=((7, 50, 60),))
    guest_process.end(stream)
    assert guest_process.out(stream).split() == [b"50", b"60"]
    stream = guest_process.shell("ulimit -n", rlimits=((7, 2**63, 2**63),))
    assert guest_process.end(stream).code == 0


def test_the_channel_is_descriptor_3_in_both_directions(guest_process: Guest) -> None:
    """What the host sends on pipe 3 is read from descriptor 3, and back; EOF passes both ways."""
    stream = guest_process.shell("cat <&3 >&3", channel=True)
    guest_process.feed(stream, b"ping" * 50_000, pipe=3)
    end = guest_process.end(stream)
    assert guest_process.out(stream, 3) == b"ping" * 50_000
    assert end.produced[2] == 200_000
    assert (stream, 3) in guest_process.eof


def test_a_terminal_is_one(guest_process: Guest) -> None:
    """stdin, stdout and stderr are one terminal of the asked size, which can be resized and typed into."""
    stream = guest_process.shell("tty >/dev/null && stty size; read line; echo got $line; stty size", pty=(30, 90))
    guest_process.started(stream)
    guest_process.quiet(0.2)
    guest_process.send(frames.RESIZE, stream, guest.encode_resize(40, 100))
    guest_process.feed(stream, b"hello\n", eof=False)
    assert guest_process.end(stream).code == 0
    lines = guest_process.out(stream).replace(b"\r", b"").split(b"\n")
    assert lines[0] == b"30 90"
    assert b"got hello" in lines
    assert b"40 100" in lines


def test_signals_reach_process_group_and_tree(guest_process: Guest) -> None:
    """Scope 0 is the process alone, scope 2 everything below it, sessions of their own included."""
    stream = guest_process.shell("trap 'echo usr1' USR1; setsid sleep 60 & echo $!; while :; do sleep 0.05; done")
    guest_process.started(stream)
    guest_process.quiet(0.3)
    guest_process.send(frames.SIGNAL, stream, guest.encode_signal(signal.SIGUSR1, 0))
    guest_process.quiet(0.3)
    pid = int(guest_process.out(stream).split()[0])
    assert b"usr1" in guest_process.out(stream)
    assert alive(pid)
    guest_process.send(frames.SIGNAL, stream, guest.encode_signal(signal.SIGTERM, 2))
    end = guest_process.end(stream)
    assert (end.how, end.code) == (guest.SIGNALED, signal.SIGTERM)
    assert vanished([pid])


def test_a_second_run_with_the_same_number_never_runs_twice(guest_process: Guest, tmp_path: Path) -> None:
    """While it runs nothing is sent; after the end the same END comes again; after CLOSE it is refused as forgotten."""
    run = guest.Run(kind=guest.SHELL, args=(f"echo x >>{tmp_path}/log; sleep 0.3".encode(),))
    stream = guest_process.start(run)
    guest_process.start(run, stream)
    first = guest_process.end(stream)
    guest_process.start(run, stream)
    assert guest_process.end(stream) == first
    guest_process.send(frames.CLOSE, stream)
    guest_process.start(run, stream)
    assert guest_process.refused(stream).step == b"forgotten"
    assert (tmp_path / "log").read_text() == "x\n"


def test_list_names_the_streams(guest_process: Guest) -> None:
    """Running and ended streams are told apart; closed ones are gone."""
    running = guest_process.argv("sleep", "60")
    pid = guest_process.started(running)
    ended = guest_process.argv("true")
    guest_process.end(ended)
    closed = guest_process.argv("true")
    guest_process.end(closed)
    guest_process.send(frames.CLOSE, closed)
    asked = guest_process.stream()
    guest_process.send(frames.LIST, asked)
    reply = guest.LIST_LAYOUT.decode(guest_process.wait(asked, frames.REPLY).payload)
    states = {state.stream: state for state in reply.states()}
    assert set(states) == {running, ended}
    assert (states[running].state, states[running].pid) == (guest.RUNNING, pid)
    assert states[ended].state == guest.ENDED


def test_many_commands_at_once(guest_process: Guest) -> None:
    """Sixty commands run side by side and each has its own output."""
    streams = [guest_process.shell(f"sleep 0.0{n % 10}; echo {n}") for n in range(60)]
    for n, stream in enumerate(streams):
        assert guest_process.end(stream).code == 0
        assert guest_process.out(stream) == b"%d\n" % n


def test_ping_is_answered_and_usage_is_measured(guest_process: Guest) -> None:
    """PONG has the bytes of the PING; END tells the CPU time and the time that passed."""
    guest_process.send(frames.PING, 0, b"abc")
    assert guest_process.wait(0, frames.PONG).payload == b"abc"
    end = guest_process.end(guest_process.shell("i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"))
    assert sum(end.cpu_us) > 10_000
    assert end.elapsed_us > 10_000
    assert end.max_rss > 100_000


def test_the_guest_ends_at_its_life_time(binary: Path) -> None:
    """life_ms ends guest and commands, whatever the host does."""
    for life in (300, 3000, 15_000):  # the longer ones for hosts on which nothing has started before the shorter ones
        with Guest(binary, life_ms=life) as running:
            stream = running.argv("sleep", "60")
            while running.pump(PATIENCE) and not running.frames[stream]:
                pass
            running.process.wait(PATIENCE)
        if running.frames[stream]:
            assert vanished([running.started(stream)])
            return
    raise AssertionError("no command started within the guest's life")


def test_nothing_outlives_the_guest_when_the_host_goes(binary: Path, tmp_path: Path) -> None:
    """When the stream ends, commands and what they left in the background are gone, sessions of their own included."""
    with Guest(binary) as running:
        stream = running.shell(f"setsid sleep 60 & echo $! >{tmp_path}/pid; sleep 60")
        pid = running.started(stream)
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
    assert vanished([pid, int((tmp_path / "pid").read_text())])


def test_nothing_outlives_a_killed_guest(binary: Path) -> None:
    """SIGKILL for the guest itself: its supervisors see the end of their socket and end their trees."""
    with Guest(binary) as running:
        pids = [running.started(running.argv("sleep", "60")) for _ in range(3)]
        running.process.kill()
        running.process.wait()
        assert vanished(pids)
