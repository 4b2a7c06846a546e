"""Programs of this host that are run for us, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.conftest import holds

from proofbox.kit.tool import run_tool

# Two processes that no signal to a group would reach, told by their numbers, one below the other.
LEAVES = "setsid sh -c 'setsid sleep 600 & echo $! >> {file}; echo $$ >> {file}; exec sleep 600' & "


def numbers(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def gone(file: Path) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in numbers(file))


def script(file: Path, end: str) -> list[str]:
    wait = f"while [ $(wc -l < {file} 2>/dev/null || echo 0) -lt 2 ]; do sleep 0.01; done; "
    return ["/bin/sh", "-c", LEAVES.format(file=file) + wait + end]


@pytest.mark.parametrize(
    ("end", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 128 + 9), ("exec /bin/no-such", 127)]
)
def test_it_ends_as_the_program_does_and_nothing_is_left(tmp_path: Path, end: str, code: int) -> None:
    """What it left in the background holds its pipes; that is ended, and not waited for."""
    file = tmp_path / "pids"
    found, said, complaints = run_tool(script(file, f"echo out; echo err >&2; {end}"), timeout=60)
    assert (found, said) == (code, b"out\n")
    assert b"err\n" in complaints
    assert len(numbers(file)) == 2
    assert gone(file)


def test_a_program_that_is_late_is_ended_with_all_of_its_own(tmp_path: Path) -> None:
    """Also one that does not want to."""
    file = tmp_path / "pids"
    with pytest.raises(TimeoutError):
        run_tool(script(file, "trap '' TERM INT HUP; while :; do sleep 0.01; done"), timeout=2)
    assert gone(file)


@pytest.mark.anyio
async def test_a_cancelled_one_leaves_nothing(tmp_path: Path) -> None:
    """Of the task that waits for the thread."""
    file = tmp_path / "pids"
    async with anyio.create_task_group() as tasks:
        words = script(file, "exec sleep 600")
        tasks.start_soon(lambda: anyio.to_thread.run_sync(lambda: run_tool(words, timeout=600)))
        assert await holds(lambda: len(numbers(file)) == 2)
        tasks.cancel_scope.cancel()
    assert gone(file)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_end_of_the_client_ends_all_of_it(tmp_path: Path, number: int) -> None:
    """However it ends; Ctrl-C goes to everybody in the foreground, the one who tidies up included."""
    file = tmp_path / "pids"
    code = f"from proofbox.kit.tool import run_tool\nrun_tool({script(file, 'exec sleep 600')!r}, timeout=600)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, start_new_session=True) as client:
        while len(numbers(file)) < 2:
            time.sleep(0.01)
        if number == signal.SIGINT:
            os.killpg(client.pid, number)
        else:
            client.send_signal(number)
    deadline = time.monotonic() + 30
    while not gone(file) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gone(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_what_it_mounts_is_gone_with_it(tmp_path: Path) -> None:
    """Nobody else has seen it, so that a killed program leaves no mount behind."""
    code, said, _ = run_tool(
        ["/bin/sh", "-c", f"mount -t tmpfs none {tmp_path} && touch {tmp_path}/file && ls {tmp_path}"], timeout=60
    )
    assert (code, said) == (0, b"file\n")
    assert os.listdir(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
