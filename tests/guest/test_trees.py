"""Whole trees end: at deadlines, on request, for their output, and when something inside attacks their supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from proofbox.wire import frames, guest

from .driver import Guest, alive, vanished

DEADLINES = (300, 1200, 5000, 15_000)
"""Milliseconds; a longer one for hosts so busy that nothing had happened before the shorter one."""

ESCAPES = {
    "setsid": "setsid sleep 300 & echo $! >&3",
    "double fork": "sh -c 'sleep 300 & echo $! >&3' &",
    "ignores SIGTERM": "sh -c 'trap \"\" TERM HUP INT; echo $$ >&3; while :; do sleep 1; done' &",
    "stopped": "sleep 300 & echo $! >&3; kill -STOP $!",
    "blocked on a FIFO": "mkfifo fifo; sh -c 'echo $$ >&3; exec cat fifo' &",
    "nohup daemon": "nohup setsid sh -c 'sleep 300 & echo $! >&3; exec sleep 300' >/dev/null 2>&1 &",
}


def _read_pids(path: Path, count: int) -> list[int]:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        pids = [int(word) for word in path.read_text().split()] if path.exists() else []
        if len(pids) >= count:
            return pids
        time.sleep(0.02)
    raise AssertionError(f"{path} has no {count} pids")


@pytest.mark.parametrize("name", ESCAPES)
def test_a_deadline_ends_whatever_tries_to_escape(guest_process: Guest, tmp_path: Path, name: str) -> None:
    """Partial output is kept, END says that the tree is gone, and it is."""
    for deadline in DEADLINES:
        place = tmp_path / str(deadline)
        place.mkdir()
        text = f"exec 3>>{place}/pids; echo partial; {ESCAPES[name]}\nsleep 300"
        stream = guest_process.shell(text, deadline_ms=deadline, cwd=os.fsencode(place))
        end = guest_process.end(stream)
        assert (end.how, end.code, end.gone, end.left) == (guest.DEADLINE, 137, True, 0)
        assert end.elapsed_us >= deadline * 1000
        if (place / "pids").exists() and (place / "pids").read_text():
            break
    assert guest_process.out(stream) == b"partial\n"
    assert not any(alive(pid) for pid in _read_pids(place / "pids", 1))


@pytest.mark.parametrize("session", ["", "os.setsid(); "])
def test_a_moving_target_is_caught(guest_process: Guest, session: str) -> None:
    """Eight processes that fork and exit for ever, in one group or in sessions of their own, do not outrun the kill."""
    storm = (
        "import os\nfor _ in range(8):\n if os.fork() == 0:\n  while True:\n   if os.fork(): os._exit(0)\n   SESSION\n"
    )
    storm = storm.replace("SESSION", session + "pass")
    stream = guest_process.argv(sys.executable, "-SEc", storm + "import time; time.sleep(300)", deadline_ms=500)
    end = guest_process.end(stream)
    assert (end.how, end.gone) == (guest.DEADLINE, True)


def test_grace_lets_a_command_end_by_itself(guest_process: Guest) -> None:
    """At the deadline SIGTERM goes to the tree; what the command ends with in its grace is told."""
    text = "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.02; done"
    for deadline in DEADLINES:
        stream = guest_process.shell(text, deadline_ms=deadline, grace_ms=15_000)
        end = guest_process.end(stream)
        assert (end.how, end.gone) == (guest.DEADLINE, True)
        if guest_process.out(stream):
            break
    assert end.code == 5
    assert guest_process.out(stream) == b"up\nbye\n"


def test_grace_ends_in_sigkill(guest_process: Guest) -> None:
    """A command that ignores SIGTERM is killed when its grace is over."""
    for deadline in DEADLINES:
        text = "trap '' TERM; echo up; while :; do sleep 0.02; done"
        stream = guest_process.shell(text, deadline_ms=deadline, grace_ms=200)
        end = guest_process.end(stream)
        assert (end.how, end.gone) == (guest.DEADLINE, True)
        if guest_process.out(stream):
            break
    assert end.code == 137
    assert end.elapsed_us >= 1000 * (deadline + 200)


def test_kill_ends_the_tree_and_says_so(guest_process: Guest, tmp_path: Path) -> None:
    """KILL is answered with END how 4 after the last process is gone; a second KILL changes nothing."""
    stream = guest_process.shell(f"setsid sleep 300 & echo $! >{tmp_path}/pids; sleep 300")
    pid = guest_process.started(stream)
    pids = [pid, *_read_pids(tmp_path / "pids", 1)]
    guest_process.send(frames.KILL, stream)
    guest_process.send(frames.KILL, stream)
    end = guest_process.end(stream)
    assert (end.how, end.code, end.gone) == (guest.KILLED, 137, True)
    assert not any(map(alive, pids))


def test_output_limit_ends_the_tree(guest_process: Guest) -> None:
    """Bytes up to the limit arrive, none above it, and the tree is gone."""
    stream = guest_process.argv("yes", output_limit=100_000)
    end = guest_process.end(stream)
    assert (end.how, end.gone) == (guest.OUTPUT_LIMIT, True)
    assert len(guest_process.out(stream)) == 100_000
    assert end.produced[0] > 100_000


def test_output_up_to_the_limit_is_allowed(guest_process: Guest) -> None:
    """A command that writes exactly its limit ends as usual."""
    stream = guest_process.argv("head", "-c", "1000", "/dev/zero", output_limit=1000)
    assert guest_process.end(stream).how == guest.EXITED
    assert len(guest_process.out(stream)) == 1000


def test_a_background_child_that_holds_the_pipe_goes_on(guest_process: Guest, tmp_path: Path) -> None:
    """The command ends after the drain window; the pipe is told as held, the child as left, and it still runs."""
    stream = guest_process.shell(f"sleep 30 & echo $! >{tmp_path}/pids; echo now", drain_ms=150)
    end = guest_process.end(stream)
    assert (end.how, end.code, end.left) == (guest.EXITED, 0, 1)
    assert end.held_pipe(1)
    assert end.held_pipe(2)
    assert guest_process.out(stream) == b"now\n"
    (pid,) = _read_pids(tmp_path / "pids", 1)
    assert alive(pid)


def test_what_a_background_child_writes_within_the_drain_window_arrives(guest_process: Guest) -> None:
    """A child that writes and ends soon after its parent loses nothing."""
    stream = guest_process.shell("(sleep 0.2; echo late) & exit 0", drain_ms=5000)
    end = guest_process.end(stream)
    assert (end.held, end.left) == (0, 0)
    assert guest_process.out(stream) == b"late\n"


def test_a_background_child_that_floods_after_the_end_is_drained(guest_process: Guest) -> None:
    """It does not hold up END, its bytes go nowhere, and it is never blocked nor ended by a closed pipe."""
    stream = guest_process.shell("yes & exit 0", drain_ms=50)
    end = guest_process.end(stream)
    assert end.held_pipe(1)
    assert end.left == 1
    guest_process.quiet(0.1)
    size = len(guest_process.out(stream))
    guest_process.quiet(0.2)
    assert len(guest_process.out(stream)) == size
    assert guest_process.end(guest_process.argv("true")).code == 0


def test_a_quiet_background_child_is_counted(guest_process: Guest) -> None:
    """Children that hold no pipe do not delay the end, and are counted."""
    end = guest_process.end(guest_process.shell("sleep 30 >/dev/null 2>&1 & sleep 30 >/dev/null 2>&1 & exit 0"))
    assert (end.held, end.left) == (0, 2)


def test_kill_all_ends_everything(guest_process: Guest, tmp_path: Path) -> None:
    """Running streams end with how 4, background processes of ended ones go, and the reply says that none is left."""
    background = guest_process.shell(f"setsid sleep 300 >/dev/null 2>&1 & echo $! >{tmp_path}/pids")
    guest_process.end(background)
    running = guest_process.argv("sleep", "300")
    pid = guest_process.started(running)
    pids = [pid, *_read_pids(tmp_path / "pids", 1)]
    asked = guest_process.stream()
    guest_process.send(frames.KILL_ALL, asked)
    reply = guest.KILL_ALL_LAYOUT.decode(guest_process.wait(asked, frames.REPLY).payload)
    assert (reply.killed, reply.gone) == (2, True)
    assert not any(map(alive, pids))
    end = guest_process.end(running)
    assert (end.how, end.gone) == (guest.KILLED, True)
    assert guest_process.end(guest_process.argv("true")).code == 0


def _supervisor(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


@pytest.mark.parametrize("attack", [signal.SIGKILL, signal.SIGSTOP])
def test_a_command_that_attacks_its_supervisor_is_ended(
    guest_process: Guest, tmp_path: Path, attack: signal.Signals
) -> None:
    """The tree is killed in answer, sessions of their own included, and END says why; other commands go on."""
    other = guest_process.shell("sleep 1; echo fine")
    stream = guest_process.shell(f"setsid sleep 300 & echo $! >{tmp_path}/pids; sleep 300")
    pid = guest_process.started(stream)
    pids = [pid, *_read_pids(tmp_path / "pids", 1)]
    os.kill(_supervisor(pid), attack)
    end = guest_process.end(stream)
    assert (end.how, end.gone) == (guest.SUPERVISOR_LOST, True)
    assert end.code == 137
    assert vanished(pids)
    assert guest_process.end(other).code == 0
    assert guest_process.out(other) == b"fine\n"


def test_a_killed_supervisor_of_an_ended_command_takes_its_children_along(guest_process: Guest, tmp_path: Path) -> None:
    """Background processes whose supervisor is killed later do not become unreachable: they are ended."""
    stream = guest_process.shell(f"sleep 300 >/dev/null 2>&1 & echo $! >{tmp_path}/pids")
    guest_process.end(stream)
    pids = _read_pids(tmp_path / "pids", 1)
    os.kill(_supervisor(pids[0]), signal.SIGKILL)
    guest_process.quiet(0.2)
    assert vanished(pids)
