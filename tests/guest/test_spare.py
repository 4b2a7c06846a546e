"""The supervisor that is made ahead: it serves like any other, and whatever happens to it, commands run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from proofbox.wire import frames, guest

from .driver import Guest, vanished


def _children(running: Guest) -> list[int]:
    pid = running.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _with_spare(running: Guest) -> int:
    """Runs commands until there is a spare; its pid."""
    for _ in range(2):
        assert running.end(running.argv("true")).code == 0
    until = time.monotonic() + 10
    while len(found := _children(running)) != 1:
        assert time.monotonic() < until, f"children {found}, not one spare"
        time.sleep(0.005)
    return found[0]


def test_one_command_leaves_no_process_behind(guest_process: Guest) -> None:
    """A sandbox for one command has no spare; from the second one on there is one, and it serves the next."""
    assert guest_process.end(guest_process.argv("true")).code == 0
    until = time.monotonic() + 10
    while _children(guest_process):
        assert time.monotonic() < until
        time.sleep(0.005)
    spare = _with_spare(guest_process)
    stream = guest_process.shell("echo $PPID; echo err >&2; exit 3")
    assert guest_process.end(stream).code == 3
    assert guest_process.out(stream) == b"%d\n" % spare
    assert guest_process.out(stream, 2) == b"err\n"


def test_a_sandbox_that_waits_has_one_for_its_first_command(binary: Path) -> None:
    """It is there before the command, serves it, and is not replaced: the second command finds what it would find."""
    with Guest(binary, ahead=True) as waiting:
        until = time.monotonic() + 10
        while len(found := _children(waiting)) != 1:
            assert time.monotonic() < until, f"children {found}, not one spare"
            time.sleep(0.005)
        for expected in (b"%d\n" % found[0], None):
            stream = waiting.shell("sleep 0.05; echo $PPID")
            assert waiting.end(stream).code == 0
            assert expected is None or waiting.out(stream) == expected
        assert waiting.out(stream) != b"%d\n" % found[0]


def test_where_processes_are_dear_none_is_made_beside_a_command(binary: Path) -> None:
    """Told so, it makes one for a sandbox that waits, and none later: the running command would pay for the fork."""
    with Guest(binary, "no-spare", ahead=True) as dear:
        until = time.monotonic() + 10
        while len(found := _children(dear)) != 1:
            assert time.monotonic() < until, f"children {found}, not one spare"
            time.sleep(0.005)
        for _ in range(4):
            stream = dear.shell("sleep 0.05; echo $PPID")
            assert dear.end(stream).code == 0
            above = int(dear.out(stream))
            assert set(_children(dear)) <= {above}, "another process than the command's own supervisor"


def test_commands_of_other_shapes_pass_the_spare_by(guest_process: Guest) -> None:
    """stdin, a merged stderr and a message of several frames are served beside it."""
    spare = _with_spare(guest_process)
    stream = guest_process.argv("cat", stdin=True)
    guest_process.feed(stream, b"data")
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == b"data"
    merged = guest_process.shell("echo a; echo b >&2", merge=True)
    assert guest_process.end(merged).code == 0
    assert guest_process.out(merged) == b"a\nb\n"
    big = guest_process.shell(f"# {'x' * 80_000}\necho $PPID")
    assert guest_process.end(big).code == 0
    assert guest_process.out(big) != b"%d\n" % spare
    assert spare in _children(guest_process)


@pytest.mark.parametrize("attack", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_spare_that_is_attacked_is_replaced(guest_process: Guest, attack: signal.Signals) -> None:
    """Code inside that kills or stops it cannot keep the next command from running."""
    spare = _with_spare(guest_process)
    os.kill(spare, attack)
    assert vanished([spare])
    stream = guest_process.shell("echo still here")
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == b"still here\n"


def test_kill_all_counts_and_ends_commands_and_not_the_spare(guest_process: Guest) -> None:
    """What the guest made for itself is nobody's process, and does not keep KILL_ALL from its end."""
    spare = _with_spare(guest_process)
    stream = guest_process.argv("sleep", "100", stdin=True)
    guest_process.started(stream)
    question = guest_process.stream()
    guest_process.send(frames.KILL_ALL, question)
    reply = guest.KILL_ALL_LAYOUT.decode(guest_process.wait(question, frames.REPLY).payload)
    assert (reply.killed, reply.gone) == (1, True)
    assert vanished([spare])
    assert guest_process.end(guest_process.argv("true")).code == 0


def test_a_quiet_command_tells_no_start(guest_process: Guest) -> None:
    """STARTED is left out where the host has no use for it; the end is told as ever."""
    stream = guest_process.argv("true", quiet=True)
    kinds = []
    while frames.END not in kinds:
        guest_process.pump(1.0)
        kinds += [frame.type for frame in guest_process.frames[stream]]
        guest_process.frames[stream].clear()
    assert kinds == [frames.END]


def test_a_quiet_command_that_runs_on_tells_its_start(guest_process: Guest) -> None:
    """Whoever has to find its process from outside learns the pid all the same, a moment later."""
    stream = guest_process.shell("echo $$; read x", quiet=True, stdin=True)
    pid = guest_process.started(stream)
    guest_process.feed(stream, b"go\n")
    assert guest_process.end(stream).code == 0
    assert guest_process.out(stream) == b"%d\n" % pid
