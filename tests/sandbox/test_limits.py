"""Limits and specs: enforced, defaulted, or refused; never advice."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from tests.sandbox.conftest import PLAIN

from proofbox.errors import Busy, InvalidInput, Refused
from proofbox.model.limits import DEFAULTS, MIB, LimitKind, Limits
from proofbox.model.spec import Volume
from proofbox.runtimes.fake import FakeRuntime
from proofbox.sandbox.host import Host

pytestmark = pytest.mark.anyio

ALL: frozenset[LimitKind] = frozenset({"memory", "processes", "cpus", "disk", "inodes"})


async def host_that_enforces(kinds: frozenset[LimitKind], *, users: bool = True) -> Host:
    """A host whose probe says that."""
    runtime = FakeRuntime()
    return Host(runtime, replace(await runtime.probe(), enforces=kinds, users=users))


async def test_silence_means_the_defaults() -> None:
    """Where the host enforces all, an empty request gets them all."""
    assert (await host_that_enforces(ALL)).effective(None) == DEFAULTS


async def test_what_is_asked_for_goes_over_the_defaults() -> None:
    """And only that."""
    got = (await host_that_enforces(ALL)).effective(Limits(memory=64 * MIB))
    assert got.memory == 64 * MIB
    assert got.processes == DEFAULTS.processes


@pytest.mark.parametrize(
    "limits", [Limits(memory=64 * MIB), Limits(cpus=1.5), Limits(disk=MIB), Limits(processes=9), Limits(cpu_time=9)]
)
async def test_a_limit_that_was_asked_for_is_enforced_or_refused(limits: Limits) -> None:
    """There is no third way."""
    host = await host_that_enforces(frozenset())
    with pytest.raises(Refused, match=limits.asked()[0]):
        host.effective(limits)


async def test_a_reservation_is_within_the_limit_and_within_the_host() -> None:
    """More than its own limit makes no sense; more than the machine has left is told before anything is made."""
    host = await host_that_enforces(ALL | {"memory_reserve"})
    with pytest.raises(InvalidInput, match="memory_reserve"):
        host.effective(Limits(memory=64 * MIB, memory_reserve=65 * MIB))
    with pytest.raises(Busy, match="reserved"):
        async with host.open_sandbox(limits=Limits(memory=1 << 60, memory_reserve=1 << 59)):
            pytest.fail("it was made")
    async with host.open_sandbox(limits=Limits(memory_reserve=MIB)) as box:
        assert (box.spec.limits.memory, box.spec.limits.memory_reserve) == (DEFAULTS.memory, MIB)


LOW = """
import resource
from dataclasses import replace

import anyio

from proofbox.runtimes.fake import FakeRuntime
from proofbox.sandbox.host import Host

resource.setrlimit(resource.RLIMIT_NPROC, (100, 100))
runtime = FakeRuntime()
probe = replace(anyio.run(runtime.probe), enforces=frozenset({"processes"}))
print(Host(runtime, probe).effective(None).processes)
"""


def test_without_cgroups_the_default_of_processes_is_one_that_this_user_may_set() -> None:
    """The kernel holds it by a limit for each user, with some for the guest; a higher one could not be set at all."""
    told = subprocess.run([sys.executable, "-c", LOW], capture_output=True, check=True)
    assert told.stdout == b"84\n"


async def test_without_cgroups_each_process_gets_an_address_space_limit() -> None:
    """A silent memory limit that nobody can enforce is replaced, not dropped."""
    got = (await host_that_enforces(ALL - {"memory"})).effective(None)
    assert got.memory is None
    assert got.process_memory == 1024 * MIB
    got = (await host_that_enforces(ALL - {"memory"})).effective(Limits(process_memory=99 * MIB))
    assert got.process_memory == 99 * MIB


@pytest.mark.parametrize("bad", [Limits(memory=0), Limits(cpus=-1.0), Limits(wall=float("nan")), Limits(open_files=1)])
async def test_a_limit_that_makes_no_sense_is_invalid(bad: Limits) -> None:
    """Zero, negative, not a number, or too little to start anything."""
    host = await host_that_enforces(ALL)
    with pytest.raises(InvalidInput, match=bad.asked()[0]):
        host.effective(bad)


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"id": "Big"}, "id"),
        ({"id": ""}, "id"),
        ({"id": "x" * 64}, "id"),
        ({"id": "../x"}, "id"),
        ({"hostname": "a b"}, "hostname"),
        ({"network": "open"}, "network"),
        ({"env": {"A=B": "c"}}, "environment"),
        ({"env": {"": "c"}}, "environment"),
        ({"env": {"A": "c\0d"}}, "NUL"),
        ({"user": "a:b:c"}, "user"),
        ({"user": ""}, "user"),
        ({"cwd": "/a\0b"}, "NUL"),
        ({"volumes": [Volume("/usr", "relative")]}, "target"),
        ({"volumes": [Volume("/usr", "/a/../b")]}, "target"),
        ({"volumes": [Volume("/nonexistent-path", "/a")]}, "source"),
        ({"volumes": [Volume("/dev/null", "/a")]}, "neither a directory nor a file"),
        ({"volumes": [Volume("/usr", "//a")]}, "plain path"),
        ({"volumes": [Volume("/usr", "/proc/a")]}, "the runtime makes"),
        ({"volumes": [Volume("/usr", "/a"), Volume("/usr", "/a")]}, "would hide '/a'"),
        ({"volumes": [Volume("/usr", "/a/lib"), Volume("/usr", "/a")]}, "would hide '/a/lib'"),
        ({"volumes": [Volume("/usr", "/a"), Volume("/usr", "/a/none")]}, "lies in the volume '/a'"),
        ({"volumes": [Volume("/usr", "/a"), Volume("/etc/passwd", "/a/lib")]}, "'/etc/passwd' is a file, and"),
        ({"template": "host", "volumes": [Volume("/usr", "/etc/passwd")]}, "'/usr' is a directory, and"),
    ],
)
async def test_a_spec_that_makes_no_sense_is_invalid(
    fake: FakeRuntime, fake_host: Host, spec: dict[str, Any], word: str
) -> None:
    """It is said before anything was made."""
    made = fake.made
    with pytest.raises(InvalidInput, match=word):
        async with fake_host.open_sandbox(**{"template": PLAIN, **spec}):
            pass
    assert fake.made == made


async def test_a_network_that_is_not_offered_is_refused(fake_host: Host) -> None:
    """Not replaced by another one."""
    with pytest.raises(Refused, match="host"):
        async with fake_host.open_sandbox(PLAIN, network="host"):
            pass


async def test_a_user_that_does_not_exist_there_is_refused(fake_host: Host) -> None:
    """With a single id inside, only root is somebody; a command as another user must not run as root."""
    with pytest.raises(Refused, match="nobody"):
        async with fake_host.open_sandbox(PLAIN, user="nobody"):
            pass
    async with fake_host.open_sandbox(PLAIN, user="root") as box:
        assert (await box.run("echo x", user="0:0")).ok
        with pytest.raises(Refused, match="1000"):
            await box.run("echo x", user="1000")


async def test_one_id_is_one_live_sandbox(fake_host: Host) -> None:
    """A second one with the id of a living one is refused; after its end the id is free."""
    async with fake_host.open_sandbox(PLAIN, id="one"):
        with pytest.raises(InvalidInput, match="in use"):
            async with fake_host.open_sandbox(PLAIN, id="one"):
                pass
    async with fake_host.open_sandbox(PLAIN, id="one") as box:
        assert (await box.run("echo x")).stdout == "x\n"
