"""Real sandboxes at crun, runc and runsc: what the host sees of them, and what is left when things die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from tests.conftest import holds, open_host

from proofbox.errors import CreateFailed, SandboxLost
from proofbox.host import cgroup
from proofbox.host.owner import Owner, dead_owners
from proofbox.model.limits import MIB, Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template
from proofbox.runtime.contract import Runtime
from proofbox.runtimes.oci import OciRuntime
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store

pytestmark = [pytest.mark.container, pytest.mark.anyio]

CLIENT = """
import sys, anyio
from proofbox.sandbox.host import Host

async def hold(host, count):
    async with host.open_sandbox("host") as box:
        await box.start("sleep 300 & setsid sleep 300 & sleep 300")
        await box.run("true")
        print("up", flush=True)
        await anyio.sleep(300)

async def main():
    host = await Host.local(sys.argv[1])
    async with anyio.create_task_group() as group:
        for count in range(int(sys.argv[2])):
            group.start_soon(hold, host, count)

anyio.run(main)
"""


@pytest.fixture(params=["crun", "runc", pytest.param("runsc", marks=pytest.mark.slow)])
async def host(request: pytest.FixtureRequest, state: Path) -> AsyncIterator[Host]:
    """This machine with one of them; skipped with the reason where it does not run."""
    async with open_host(request.param) as found:
        yield found


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Live state of this test alone, below a directory that no other user may walk."""
    path = tmp_path_factory.mktemp("state")
    path.chmod(0o700)
    monkeypatch.setenv("PROOFBOX_STATE", str(path))
    yield path
    monkeypatch.undo()


def descendants(pid: int) -> set[int]:
    """Every process below that one."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pids: set[int]) -> set[int]:
    """Those that have not ended."""
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}/exe") and os.path.lexists(f"/proc/{pid}/cwd")}


def started(runtime: str) -> subprocess.Popen[bytes]:
    """A client with three sandboxes at that runtime."""
    words = [sys.executable, "-c", CLIENT, runtime, "3"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def prepared(state: Path) -> set[int]:
    """Our own programs in front of an OCI runtime, by the bundle in their command line."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if b"oci-enter" in words and any(word.startswith(os.fsencode(state)) for word in words):
                found.add(int(entry.name))
    return found


def groups_of(owner: str) -> list[Path]:
    """Cgroups that carry that owner's id."""
    return [path for root in cgroup.find_place().roots() for path in (root / cgroup.TOP).glob(f"{owner}/*")]


async def test_nothing_of_a_sandbox_shows_in_the_host_mount_table(host: Host) -> None:
    """All mounts are made in a mount namespace that ends with the sandbox."""
    before = Path("/proc/self/mountinfo").read_text()
    async with host.open_sandbox("host") as box:
        assert (await box.run("echo here > /usr/there; cat /usr/there")).stdout == "here\n"
        assert Path("/proc/self/mountinfo").read_text() == before
        assert not Path("/usr/there").exists()


async def test_a_sandbox_stays_in_its_own_cgroup(host: Host) -> None:
    """The OCI runtime neither moves it out of its limits nor makes groups of its own."""
    if not cgroup.find_place().directories:
        pytest.skip("no control group can be had here")
    async with host.open_sandbox("host", id="stays-here", limits=Limits(memory=64 * MIB)) as box:
        walked = os.walk("/sys/fs/cgroup")  # which bears that others' groups come and go meanwhile
        made = [Path(top, name) for top, names, _ in walked for name in names if "stays-here" in name]
        assert made
        assert {path.parent.parent.name for path in made} == {cgroup.TOP}
        try:
            eaten = await box.run("tail /dev/zero", timeout=30)
            assert (eaten.usage.oom_kills or 0) >= 1
        except SandboxLost as lost:  # at runsc it ends the sandbox
            assert lost.reason == "memory"  # noqa: PT017


async def test_a_full_layer_is_no_space_left_for_every_part_of_it(host: Host) -> None:
    """/, /usr and /dev/shm share one limit."""
    async with host.open_sandbox("host", limits=Limits(disk=4 * MIB)) as box:
        for place in ("/tmp", "/usr", "/dev/shm"):
            result = await box.run(f"head -c 8M /dev/zero > {place}/fill; ls -l {place}/fill; rm {place}/fill")
            assert "No space left" in result.stderr, place
        await box.run("head -c 3M /dev/zero > /dev/shm/part")
        assert "No space left" in (await box.run("head -c 2M /dev/zero > /usr/part")).stderr
        assert ((await box.usage()).disk or 0) > 3 * MIB


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.3])
async def test_killing_the_client_ends_its_sandboxes_at_once(host: Host, state: Path, delay: float) -> None:
    """SIGKILL of the client: its processes are gone within a moment, the rest goes with the next sweep."""
    client = started(host.runtime_name)
    assert client.stdout is not None
    if delay:
        assert client.stdout.readline() == b"up\n"
    else:
        assert await holds(lambda: bool(list(state.glob("owners/*.d/oci-*/config.json"))))
    await anyio.sleep(delay)
    below = descendants(client.pid)
    client.send_signal(signal.SIGKILL)
    with client:
        client.wait()
    assert await holds(lambda: not alive(below | prepared(state)))
    runtime: Runtime = OciRuntime(Owner("none", state), host.runtime_name)
    swept: set[str] = set()
    # A child of the client that was not yet another program when it was killed holds its lock for a moment longer.
    for _ in range(100):
        for owner in dead_owners():
            await runtime.sweep(owner)
            assert not groups_of(owner.id)
            assert owner.forget()
            swept.add(owner.id)
        if swept:
            break
        await anyio.sleep(0.02)
    assert len(swept) == 1
    assert not list(state.glob("owners/*.d/oci-*"))
    assert not prepared(state)


async def test_a_failing_start_says_which_step_and_leaves_nothing(host: Host, state: Path) -> None:
    """A layer that does not exist ends the start with its path; bundle and cgroups are gone."""
    broken = open_store().resolve("host")
    layers = tuple(type(layer)(layer.target, f"{layer.source}/gone") for layer in broken.layers)
    template = Template(digest=broken.digest, name="broken", layers=layers, env={})
    with pytest.raises((CreateFailed, SandboxLost), match="gone"):
        async with host.open_sandbox(template):
            pass
    assert not list(state.glob("owners/*.d/oci-*"))


async def test_a_failing_runtime_is_quoted(host: Host, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the OCI runtime itself complains of is in the error."""
    owner = Owner.register()
    runtime = OciRuntime(owner, host.runtime_name)
    template = open_store().resolve("host")
    handle = await runtime.create(SandboxSpec(id="quoted", template="host", limits=Limits(disk=MIB)), template)
    (handle.directory / "config.json").write_text("{")
    await runtime.start(handle)
    with await runtime.connect(handle) as channel:
        await anyio.wait_readable(channel)
        told = channel.recv(4096)
    assert told[4] == 0x8F
    assert host.runtime_name.encode() in told
    await runtime.destroy(handle)
    await runtime.close()
    assert owner.forget()


async def test_devices_of_the_host_keep_their_owner(host: Host) -> None:
    """An OCI runtime gives its standard descriptors to the sandbox's root: what they are must not be the host's."""
    before = os.stat(os.devnull)
    async with host.open_sandbox("host", id="devices") as box:
        assert (await box.run("true")).ok
        base = box._life.handle.base  # type: ignore[union-attr]
        assert os.stat(os.devnull).st_uid != base or base == 0
    assert os.stat(os.devnull).st_mode == before.st_mode
