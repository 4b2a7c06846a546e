"""How many sandboxes a host can hold: every limit is read, what is taken of it counted, and the remedy suffices."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from proofbox.host import room
from proofbox.host.room import Room, Takes, rooms, short

FILES = {
    "proc/sys/fs/file-nr": "1000\t0\t4000",
    "proc/sys/fs/file-max": "4000",
    "proc/sys/fs/inotify/max_user_instances": "128",
    "proc/sys/kernel/pid_max": "32768",
    "proc/sys/kernel/threads-max": "500",
    "proc/sys/user/max_net_namespaces": "70",
    "proc/loadavg": "0.10 0.20 0.30 2/300 999",
}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with these files, and no others of the kernel's."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return tmp_path


@pytest.fixture
def few_files() -> Iterator[int]:
    """This process may open few files more than it has."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = len(os.listdir("/proc/self/fd")) + room.MAKING + 300
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def found(host: Path, takes: Takes, **more: int) -> dict[str, Room]:
    """By what they are."""
    return {each.what: each for each in rooms(takes, host, more.get("memory"), host)}


def test_each_limit_is_compared_with_what_a_sandbox_takes(host: Path) -> None:
    """The numbers of the kernel, divided; a kind of namespace for which this kernel has no switch is left out."""
    takes = Takes(all_files=30, tasks=3, per_command=2, namespaces=(("net", 2), ("time", 1)))
    of = found(host, takes)
    assert (of["open files of this machine"].used, of["open files of this machine"].holds) == (1000, 100)
    assert of["process ids"].holds == (32768 - 300) // 5
    assert of["threads of this machine"].holds == 40
    made = found(host, Takes(tasks=3, per_command=2, starting=4))
    assert made["process ids"].used == of["process ids"].used + room.AT_ONCE * 4  # of those that are in the making
    assert (of["net namespaces"].limit, of["net namespaces"].each) == (70, 2)
    assert of["net namespaces"].used >= 1
    assert "time namespaces" not in of
    assert [each.holds for each in of.values()] == sorted(each.holds for each in of.values())


def test_the_descriptors_of_this_process_are_counted(host: Path, few_files: int) -> None:
    """Those that are open now, and room for those in the making, belong to nobody."""
    of = found(host, Takes(files=3))["open files of this process"]
    assert (of.limit, of.holds) == (few_files, 100)


def test_only_what_is_certain_is_a_hard_limit(host: Path) -> None:
    """Programs inside may watch no file, and none needs all of its memory."""
    of = found(host, Takes(), memory=1 << 40)
    soft = {each.what for each in of.values() if not each.hard}
    assert soft == {"inotify instances of this user, all of its sandboxes together", "bytes of memory by their limits"}
    assert of["bytes of memory by their limits"].holds == 0
    assert of["bytes of memory"].holds > 0


@pytest.mark.parametrize("sandboxes", [1, 41, 64, 10_000])
def test_the_remedy_suffices(host: Path, sandboxes: int) -> None:
    """The number in the command is one with which so many fit, and it is told with all others."""
    tight = found(host, Takes())["threads of this machine"]
    raised = int(re.findall(r"=(\d+)$", tight.raised(sandboxes))[0])
    assert (raised - tight.used) // tight.each >= sandboxes
    told = tight.told(sandboxes)
    assert f"room for {tight.holds} of {sandboxes} sandboxes (300 of 500 are used, each takes {tight.each})" in told
    assert told.endswith(tight.raised(sandboxes))


def test_what_suffices_is_not_told(host: Path) -> None:
    """And what is exactly enough suffices."""
    of = found(host, Takes(namespaces=()))
    least = next(iter(of.values()))
    assert short(of.values(), least.holds) == []
    assert short(of.values(), least.holds + 1)[0] == least
