"""Other processes as /proc shows them: whatever they call themselves, and whatever they wait in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from proofbox.host import pressure, threads
from proofbox.host.threads import Process


@contextmanager
def child(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that runs the code, and has said so."""
    argv = [sys.executable, "-S", "-c", f"import os, sys, threading, time\n{code}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def seen(pid: int) -> Process:
    found, complete = threads.processes([pid], 100)
    assert complete
    return found[0]


def settled(pid: int, word: str) -> Process:
    """The process, once its first thread is in that."""
    for _ in range(500):
        process = seen(pid)
        if threads.waits_in(process.threads[0])[0] == word:
            return process
        time.sleep(0.01)
    raise AssertionError(f"never in {word}: {process}, {threads.waits_in(process.threads[0])}")


@pytest.mark.parametrize("name", [") R 1 (", "a) b)", "(", "0 0 0\n0"])
def test_a_name_cannot_forge_the_rest(name: str) -> None:
    """What a process calls itself is not read as its state or its parent."""
    with child(f"open('/proc/self/comm', 'w').write({name!r})\nprint(flush=True)\ntime.sleep(60)") as process:
        found = settled(process.pid, "sleep")
        assert (found.parent, found.comm, found.threads[0].state) == (os.getpid(), name, "S")


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("sleep", "time.sleep(60)"),
        ("read", "sys.stdin.read()"),
        ("futex", "threading.Event().wait()"),
        ("stopped", "os.kill(os.getpid(), 19)"),
        ("running", "while True: pass"),
    ],
)
def test_what_a_program_waits_in_has_a_word(word: str, code: str) -> None:
    """From the system call that it is in."""
    with child(f"print(flush=True)\n{code}") as process:
        settled(process.pid, word)


def test_a_thread_that_computes_is_seen_beside_one_that_sleeps() -> None:
    """Each thread has its own state and times; the process has the sum."""
    spin = "def spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()"
    with child(f"{spin}\nprint(flush=True)\ntime.sleep(60)") as process:
        before = settled(process.pid, "sleep")
        time.sleep(0.3)
        after = seen(process.pid)
        (first, second), (_, later) = before.threads, after.threads
        assert later.ran - second.ran + later.waited - second.waited > 200_000_000
        assert after.threads[0].ran - first.ran < 50_000_000


def test_a_parent_of_a_vfork_does_not_wait_for_a_disk() -> None:
    """Any program can sleep uninterruptibly in that way, so it proves nothing about the host."""
    assert threads.is_own_wait("kernel_clone")
    assert not threads.is_own_wait("folio_wait_bit_common")


def test_descendants_are_found_and_bounded() -> None:
    """A tree is found by its root; no more threads are looked at than asked for."""
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & echo; wait"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            pids = threads.descendants(process.pid)
            assert len(pids) == 3
            everything, complete = threads.processes(pids, 100)
            assert (len(everything), complete) == (3, True)
            assert len(threads.below(everything, process.pid)) == 3
            assert len(threads.below(everything, pids[1])) == 1
            some, complete = threads.processes(pids, 2)
            assert (len(some), complete) == (2, False)
            assert threads.inner_pid(process.pid)[1] > 0
        finally:
            for pid in pids[::-1]:
                os.kill(pid, 9)
    assert threads.processes([process.pid], 10)[0] == []


def test_what_others_used_is_what_we_did_not() -> None:
    """Between two looks at the host; a program that computes outside of ours is among the others."""
    with child("print(flush=True)\nwhile True: pass"):
        first = pressure.look()
        time.sleep(0.5)
        last = pressure.look()
    found = pressure.between(first, last, 0.0)
    assert found.cpus == pressure.processors()
    assert found.others is not None
    assert 0.1 < found.others <= 0.7 * (found.cpus + 1)
    mine = pressure.between(first, last, 1e9)
    assert mine.others == 0.0


def test_children_of_whom_there_are_more_than_a_page_holds_are_all_found() -> None:
    """The kernel hands out their numbers a page at a time: a launcher has a child for each sandbox."""
    many = 1000
    fork = "if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)"
    with child(f"os.setpgrp()\nfor _ in range({many}):\n    {fork}\nprint(flush=True)\ntime.sleep(60)") as parent:
        try:
            found = threads.descendants(parent.pid)
        finally:
            os.killpg(parent.pid, 9)
    assert len(set(found)) == 1 + many


ORPHANS = """
import ctypes
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
os.setpgrp()
print(flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        print(os.getpid(), flush=True)
        time.sleep(60)
    os.wait()
"""


def test_an_orphan_is_found_while_its_parent_ends() -> None:
    """It goes from its parent to a process above, which may have been looked at already."""
    missed = []
    with child(ORPHANS) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            for _ in range(300):
                parent.stdin.write(b"\n")
                parent.stdin.flush()
                orphan = int(parent.stdout.readline())
                if orphan not in threads.descendants(parent.pid):
                    missed.append(orphan)
        finally:
            os.killpg(parent.pid, 9)
    assert missed == []
