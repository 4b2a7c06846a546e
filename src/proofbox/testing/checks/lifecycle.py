"""Sandboxes begin alike, know nothing of each other, end completely, and are refused rather than weakened."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from proofbox.errors import InvalidInput, ProofboxError, Refused, UnknownTemplate
from proofbox.model.limits import Limits
from proofbox.sandbox.host import Host
from proofbox.testing.needs import OpenBox, alive, alive_outside, check


async def gone(marker: str) -> bool:
    """Whether the host has no process with the marker, within a while."""
    for _ in range(1000):
        if not alive_outside(marker):
            return True
        await anyio.sleep(0.02)
    return False


@check(shared_kernel=True)
async def test_destroyed_means_gone(open_box: OpenBox, marker: str) -> None:
    """Every process of a sandbox, those that left their session too, is gone when its block is left."""
    async with open_box() as box:
        await box.start(f"setsid sh -c 'sleep {marker} & sleep {marker}' & sleep {marker}")
        await box.run(f"nohup setsid sleep {marker} > /dev/null 2>&1 &")
        assert len(await alive(box, marker)) >= 2
        assert alive_outside(marker), "the check cannot see what it wants to see gone"
    assert alive_outside(marker) == []


@check(shared_kernel=True)
async def test_an_error_in_the_block_ends_the_sandbox_too(open_box: OpenBox, marker: str) -> None:
    """The error comes out as it went in."""
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
        async with open_box() as box:
            await box.start(f"sleep {marker}")
            raise ZeroDivisionError
    assert alive_outside(marker) == []


@check(shared_kernel=True)
async def test_a_cancelled_command_leaves_nothing(open_box: OpenBox, marker: str) -> None:
    """Its whole tree is ended, and the sandbox takes the next command."""
    async with open_box() as box:
        with anyio.move_on_after(0.3) as scope:
            await box.run(f"setsid sleep {marker} & sleep {marker}")
        assert scope.cancelled_caught
        assert await gone(marker)
        assert (await box.run("echo on")).stdout == "on\n"


@check()
async def test_a_cancelled_creation_leaves_nothing_open(open_box: OpenBox) -> None:
    """Given up at any moment, it can be asked for again, and works."""
    for delay in (0.0, 0.001, 0.003, 0.006, 0.01, 0.02):
        with anyio.move_on_after(delay):
            async with open_box():
                await anyio.sleep_forever()
    async with open_box() as box:
        assert (await box.run("echo on")).stdout == "on\n"


@check()
async def test_a_closed_sandbox_takes_no_command(open_box: OpenBox) -> None:
    """It says that it is closed, and closing it again is no error."""
    async with open_box() as box:
        await box.aclose()
        await box.aclose()
        with pytest.raises(ProofboxError):
            await box.run("echo never")


@check()
async def test_ids_are_chosen_before_or_differ(open_box: OpenBox) -> None:
    """A caller's id is taken as it is, and every sandbox has its own."""
    async with open_box(id="check-named-one") as named, open_box() as one, open_box() as two:
        assert named.id == "check-named-one"
        assert len({named.id, one.id, two.id}) == 3
    with pytest.raises(InvalidInput):
        async with open_box(id="../escape"):
            pass


@check(level="container")
async def test_every_start_is_the_same(open_box: OpenBox) -> None:
    """What one sandbox leaves, the next one of the template does not find; and what is there has the same owner."""
    places = "/tmp /var/tmp /dev/shm /usr/bin /etc"
    owners = "stat -c '%n %u %g %a' / /tmp /dev /dev/* /proc"
    async with open_box() as box:
        first = (await box.run(f"ls -a {places}")).stdout
        owned = (await box.run(owners)).stdout
        await box.run(f"for d in {places}; do echo x > $d/left-behind; done; ipcmk -Q")
    async with open_box() as box:
        assert (await box.run(f"ls -a {places}")).stdout == first
        assert (await box.run(owners)).stdout == owned


@check(level="container")
async def test_two_sandboxes_do_not_see_each_other(open_box: OpenBox, marker: str) -> None:
    """Files, processes, shared memory, System V objects, host names are each one's own."""
    async with open_box(hostname="left") as left, open_box(hostname="right") as right:
        await left.start(["sleep", marker])
        await left.write("/tmp/only-left", "x")
        await left.write("/dev/shm/only-left", "x")
        made = await left.run("ipcmk -Q && ipcmk -M 4096")
        assert (await left.run("hostname; cat /proc/sys/kernel/hostname")).stdout.split() == ["left", "left"]
        assert (await right.run("cat /proc/sys/kernel/hostname")).stdout == "right\n"
        assert await alive(right, marker) == []
        assert not (await right.run("ls /tmp/only-left || ls /dev/shm/only-left")).ok
        told = "sysvipc" not in left.host.probe.differs
        if made.ok and told:
            assert len((await left.run("cat /proc/sysvipc/msg /proc/sysvipc/shm")).stdout.splitlines()) == 4
        assert not told or len((await right.run("cat /proc/sysvipc/msg /proc/sysvipc/shm")).stdout.splitlines()) == 2
        first = "kill -9 1; " if "first process" not in right.host.probe.differs else ""
        assert not (await right.run(f"kill -9 -1; {first}exit 3")).ok
        assert len(await alive(left, marker)) == 1


@check(level="container", program="python3")
async def test_two_sandboxes_can_use_the_same_port(open_box: OpenBox) -> None:
    """A port and an abstract socket name are free in each, and neither can be reached from the other."""
    server = "import socket; s = socket.create_server(('127.0.0.1', 18432)); "
    server += "u = socket.socket(socket.AF_UNIX); u.bind('\\0proofbox-check'); u.listen(); "
    server += "print('up', flush=True); s.accept()"
    async with open_box() as left, open_box() as right:
        for box in (left, right):
            job = await box.start(["python3", "-I", "-S", "-c", server])
            with anyio.fail_after(30):
                async for _, data in job.output():
                    assert data == b"up\n"
                    break


@check()
async def test_what_cannot_be_enforced_is_refused(conformance_host: Host, open_box: OpenBox) -> None:
    """A limit that the probe does not name is refused before anything is made, with a sentence that names it."""
    asked = Limits(memory=64 << 20, processes=64, cpus=0.5, disk=64 << 20, inodes=1000)
    for kind in asked.asked():
        if kind in conformance_host.probe.enforces:
            continue
        with pytest.raises(Refused, match=kind):
            async with open_box(limits=msgspec.structs.replace(Limits(), **{kind: getattr(asked, kind)})):
                pass


@check()
async def test_an_unknown_template_is_named(conformance_host: Host) -> None:
    """The message says which one, and how to see those that exist."""
    with pytest.raises(UnknownTemplate, match="no-such-template"):
        async with conformance_host.open_sandbox("no-such-template"):
            pass


@check()
async def test_timings_and_limits_are_recorded(open_box: OpenBox) -> None:
    """A sandbox knows its effective limits and how long each phase took."""
    async with open_box(limits=Limits(wall=600.0)) as box:
        assert box.spec.limits.wall == 600.0
        assert box.timings
        assert all(seconds >= 0 for seconds in box.timings.values())


@check()
async def test_many_sandboxes_live_at_once(open_box: OpenBox) -> None:
    """Twenty of them, opened together, each with its own answer."""
    answers: dict[int, str] = {}

    async def one(number: int) -> None:
        async with open_box() as box:
            answers[number] = (await box.run(f"echo {number}")).stdout

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert answers == {number: f"{number}\n" for number in range(20)}
