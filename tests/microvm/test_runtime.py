"""The runtime ``microvm``: what of it no check of the conformance suite asks for."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import anyio
import msgspec
import pytest
from tests.conftest import sees_what_is_inside

from proofbox.errors import CreateFailed, InvalidInput, Refused
from proofbox.host.home import MACHINES, data_home
from proofbox.host.owner import Owner, state_dir
from proofbox.host.threads import descendants
from proofbox.model.limits import MIB, Limits
from proofbox.model.spec import Volume
from proofbox.model.template import Template
from proofbox.runtime import registry
from proofbox.runtime.reaper import reap
from proofbox.runtimes.microvm import warm
from proofbox.runtimes.microvm.handle import MicrovmHandle
from proofbox.runtimes.microvm.runtime import MicrovmRuntime
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store
from proofbox.testing.needs import skip_unless_required
from proofbox.testing.small import small_template

pytestmark = [pytest.mark.container, pytest.mark.anyio]

SMALL = Limits(memory=64 * MIB, disk=16 * MIB)
CLIENT = """
import sys
import anyio
from proofbox.model.limits import Limits
from proofbox.runtimes.microvm.handle import MicrovmHandle
from proofbox.runtimes.microvm.runtime import MicrovmRuntime
from proofbox.sandbox.host import Host

async def main():
    host = await Host.local("microvm")
    async with host.open_sandbox(sys.argv[1], limits=Limits(memory=64 << 20)) as box:
        print(box.id, flush=True)
        await anyio.sleep(600)

anyio.run(main)
"""


@pytest.fixture(scope="module")
async def machines(anyio_backend: str) -> AsyncIterator[Host]:
    """This host with virtual machines, emulated or not; skipped with the reason where it has none."""
    try:
        host = await Host.local("microvm")
    except Refused as refused:
        skip_unless_required("microvm", refused)
    yield host
    await host.aclose()


@pytest.fixture(scope="module")
def template(machines: Host) -> Template:
    """Some programs of this host."""
    return small_template(open_store())


async def test_a_machine_holds_one_sandbox_with_an_identity_of_its_own(
    machines: Host, template: Template, tmp_path: Path
) -> None:
    """Another kernel than the host's, a clock and ids, a volume that can only be read, and no network card."""
    tmp_path.chmod(0o755)
    (tmp_path / "data").write_text("of the host")
    look = (
        "uname -r; cat /proc/sys/kernel/random/boot_id; hostname 2>/dev/null || cat /proc/sys/kernel/hostname; date +%s"
    )
    async with machines.open_sandbox(
        template, limits=SMALL, hostname="machine", volumes=(Volume(str(tmp_path), "/data"),), seed="one"
    ) as box:
        before = (await box.run("date +%s")).stdout
        told = (await box.run(look)).stdout.split()
        assert told[0] == machines.probe.facts["guest kernel"]
        assert told[1] != Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert told[2] == "machine"
        assert abs(int(before) - int(told[3])) < 60
        assert (await box.run("cat /data/data")).stdout == "of the host"
        assert "Read-only" in (await box.run("echo x > /data/data")).stderr
        assert (await box.run("ls /proc/sys/net/ipv4/conf")).stdout.split() == ["all", "default", "lo"]
        assert not (await box.run("ls -d /dev/vport* /dev/vd*")).ok
        await box.run("head -c 4M /dev/zero > /tmp/file")
        usage = await box.usage()
        assert 4 * MIB <= (usage.disk or 0) < 6 * MIB
        assert usage.oom_kills == 0
        if "cpu_time" in machines.probe.enforces:
            assert (usage.cpu_user or 0) + (usage.cpu_system or 0) > 0


async def test_a_machine_of_a_size_boots_once(
    machines: Host, template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another template go on from the saved one, each with ids, a clock and random numbers of its own."""
    async with machines.open_sandbox(template, limits=SMALL):
        pass
    monkeypatch.setattr(warm, "_boot", None)
    other = open_store().import_directory(tmp_path, "microvm-other")
    look = "cat /proc/sys/kernel/random/boot_id; head -c 16 /dev/urandom | od -A n -t x8; date +%s"
    told = []
    async with (
        machines.open_sandbox(other, limits=SMALL),
        machines.open_sandbox(template, limits=SMALL) as one,
        machines.open_sandbox(template, limits=SMALL) as two,
    ):
        for box in (one, two):
            *mine, now = (await box.run(look)).stdout.split()
            told += mine
            assert abs(int(now) - time.time()) < 60
    assert len(set(told)) == len(told) == 6


async def test_the_first_machine_of_a_size_has_all_of_its_memory(machines: Host, template: Template) -> None:
    """What was empty when its state was saved is memory of the state's and its own when it is written first: its group
    on the host has room for both, or what it does would be the end of its machine.
    """
    async with machines.open_sandbox(template, limits=Limits(memory=520 * MIB)) as box:
        result = await box.run("head -c 460M /dev/zero | tail -c 460M | wc -c", timeout=90)
        assert result.stdout == f"{460 * MIB}\n"


async def test_the_limit_on_processes_is_no_lower_than_what_was_asked(machines: Host, template: Template) -> None:
    """The kernel of a small machine would have few, and refuse the next one where nothing counts that."""
    code = "import threading, time\nfor _ in range(900):\n    threading.Thread(target=time.sleep, args=(60,)).start()"
    async with machines.open_sandbox(template, limits=Limits(memory=96 * MIB, processes=1000)) as box:
        result = await box.run(["python3", "-c", f"{code}\nimport os; os.write(1, b'all'); os._exit(0)"], timeout=90)
        assert result.stdout == "all", result


async def test_a_full_fingerprint_is_of_what_is_inside(machines: Host, template: Template) -> None:
    """It is taken by the guest, behind a kernel of its own."""
    await sees_what_is_inside(machines, template)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
async def test_what_is_closed_to_its_user_keeps_no_image_from_being_made(machines: Host, template: Template) -> None:
    """The host's secrets are not in it, and all the rest is."""
    async with machines.open_sandbox(template, limits=SMALL, volumes=(Volume("/etc", "/data"),)) as box:
        seen = (await box.run(["ls", "-A", "/data"])).stdout.split()
    open_to_us = {each.name for each in Path("/etc").iterdir() if each.is_symlink() or os.access(each, os.R_OK)}
    assert "shadow" not in open_to_us
    assert {*seen} == open_to_us


async def test_the_usual_machine_serves_where_qemu_has_no_small_one(
    machines: Host, template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disks and ports are on another bus there; a sandbox comes up all the same, and says what runs its processor."""
    runtime = registry.runtime("microvm")
    assert isinstance(runtime, MicrovmRuntime)
    parts = await runtime.parts()
    monkeypatch.setattr(runtime, "_parts", replace(parts, qemu=replace(parts.qemu, board="q35")))
    monkeypatch.setattr(runtime, "boots", True)
    async with machines.open_sandbox(template, limits=SMALL) as box:
        assert (await box.run("uname -r")).stdout.strip() == parts.kernel.version
        told = await box.isolation()
    assert told.platform == parts.accelerator
    assert (told.seccomp, told.no_new_privs, told.capabilities) == (2, True, ()), "of QEMU's process"
    assert "net" not in told.shared
    assert not any(outside == 0 for _, outside, _ in told.ids)


async def test_a_kernel_is_looked_for_once_and_again_when_the_probe_is_asked_anew(
    machines: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the probe was found to rest on is what machines are started from, also after one was exchanged."""
    runtime = MicrovmRuntime(registry.owner())
    before = await runtime.parts()
    image = Path(shutil.copy(before.kernel.image, tmp_path / before.kernel.image.name))
    monkeypatch.setenv("PROOFBOX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PROOFBOX_KERNEL", str(image))
    monkeypatch.setenv("PROOFBOX_KERNEL_MODULES", str(before.kernel.modules))
    assert await runtime.parts() is before
    assert str(image) in runtime.rests_on()
    assert (await runtime.parts()).kernel.image == image
    monkeypatch.setenv("PROOFBOX_KERNEL", str(tmp_path / "gone"))
    assert runtime.rests_on() == ()
    with pytest.raises(Refused, match="gone"):
        await runtime.parts()
    await runtime.close()


async def test_a_kernel_that_is_none_is_refused_with_the_words_of_qemu(
    machines: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a machine ends before it is there, whoever asks for the first one is told why."""
    owner = Owner.register()
    runtime = MicrovmRuntime(owner)
    found = (await runtime.parts()).kernel
    image = tmp_path / found.image.name
    image.write_bytes(bytes(100_000))
    monkeypatch.setenv("PROOFBOX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PROOFBOX_KERNEL", str(image))
    monkeypatch.setenv("PROOFBOX_KERNEL_MODULES", str(found.modules))
    runtime.rests_on()  # looks anew
    (missing,) = (await runtime.probe()).missing
    assert "qemu: linux kernel too old" in missing.what
    await runtime.close()
    owner.forget()


async def test_a_copy_of_a_running_machine_can_become_another_one(machines: Host, template: Template) -> None:
    """Told so, a machine has another host name, machine id and boot id, with its sandbox running on as it did."""
    look = "cat /proc/sys/kernel/hostname /etc/machine-id /proc/sys/kernel/random/boot_id"
    async with machines.open_sandbox(template, limits=SMALL) as box:
        before = (await box.run(look)).stdout.split()
        waiting = await box.start("cat; echo on", stdin=True)
        handle = box._life.handle  # who copies a machine does this before anybody gets the copy
        assert isinstance(handle, MicrovmHandle)
        other = msgspec.structs.replace(box._life.spec, hostname="other", machine_id="1" * 32, boot_id=str(UUID(int=7)))
        for _ in range(2):
            await handle.control.renew(other)
        after = (await box.run(look)).stdout.split()
        assert after == [other.hostname, other.machine_id, other.boot_id]
        assert len(before) == 3
        assert not set(before) & set(after)
        assert not (await box.run("echo x > /proc/sys/kernel/random/boot_id")).ok
        await waiting.send_eof()
        assert (await waiting.wait()).stdout == "on\n"


async def test_the_image_of_a_template_is_made_once_and_goes_with_it(machines: Host, tmp_path: Path) -> None:
    """Many wait for one image; when nothing needs the template any more, the collector removes both."""
    store = open_store()
    (tmp_path / "root").mkdir()
    (tmp_path / "root/mark").write_text(str(tmp_path))
    found = store.import_directory(tmp_path / "root", "microvm-image")
    image = data_home() / MACHINES / f"{found.digest.removeprefix('sha256:')}.erofs"
    stamps: list[int] = []

    async def opened() -> None:
        async with machines.open_sandbox(found, limits=SMALL) as box:
            assert await box.files.read("/mark") == (tmp_path / "root/mark").read_bytes()
            stamps.append(image.stat().st_mtime_ns)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(opened)
        tasks.start_soon(opened)
    assert len(set(stamps)) == 1
    assert image.stat().st_mode & 0o777 == 0o444
    image.chmod(0o600)
    os.truncate(image, 0)
    image.chmod(0o444)
    with pytest.raises(CreateFailed, match=f"{image} may be damaged: remove it"):
        await opened()
    image.unlink()
    await opened()
    store.close()
    store.remove("microvm-image")
    store.collect()
    assert not image.exists()


async def test_a_killed_client_leaves_no_machine(machines: Host, template: Template) -> None:
    """Its machine dies with it, at once; the next reaper removes the machine's directory and groups."""
    client = await anyio.open_process([sys.executable, "-c", CLIENT, template.digest])
    async with client:
        assert client.stdout is not None
        ident = (await client.stdout.receive()).decode().strip()
        (directory,) = state_dir().glob(f"owners/*.d/machine-{ident}")
        processes = [os.pidfd_open(pid) for pid in descendants(client.pid)]
        assert len(processes) > 1
        client.kill()
        with anyio.fail_after(60):
            for each in processes:
                await anyio.wait_readable(each)
                os.close(each)
        await client.wait()
        await reap()
        assert not directory.exists()


async def test_what_a_machine_cannot_do_is_refused(machines: Host, template: Template) -> None:
    """The host's network, and limits that nothing here enforces: by name, and before anything is made."""
    with pytest.raises(Refused, match="network"):
        async with machines.open_sandbox(template, network="host"):
            pass
    with pytest.raises(Refused, match="memory_reserve"):
        async with machines.open_sandbox(template, limits=Limits(memory_reserve=MIB)):
            pass


async def test_emulation_is_never_chosen_for_a_level(machines: Host) -> None:
    """Only by its name: an emulated machine is slow, and is no boundary of that level."""
    if not machines.probe.by_name_only:
        assert machines.probe.level == "vm"
        return
    with pytest.raises(Refused, match=r"asked for by name|reaches only"):
        await registry.select(level="vm")
    with pytest.raises(Refused, match="reaches only level"):
        await registry.select("microvm", level="vm")
    with pytest.raises(InvalidInput):
        await registry.select(level="machine")  # type: ignore[arg-type]
