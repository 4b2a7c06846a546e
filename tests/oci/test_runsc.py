"""gVisor: what keeps its kernel apart from this host, and what of a sandbox is true outside of it."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.conftest import open_host, sees_what_is_inside

from proofbox.build.command import limits_of
from proofbox.errors import CreateFailed, Refused, SandboxLost
from proofbox.model.limits import MIB, Limits
from proofbox.model.outcome import HitLimit
from proofbox.model.task import Candidate, FunctionTests, Task
from proofbox.model.template import Layer, Template
from proofbox.runtime.contract import Missing
from proofbox.runtimes.oci.programs import version
from proofbox.sandbox.host import Host
from proofbox.templates.store import open_store
from proofbox.testing.small import small_template
from proofbox.verify.function import FunctionVerifier

pytestmark = [pytest.mark.container, pytest.mark.anyio]

OLD = "/usr/bin/runsc"
"""Where Debian 12 has one whose kernel lacks what the guest needs."""
WRITE = """
umask 022; mkdir -p /srv/d /tmp/d; echo one > /srv/d/one; ln -s one /srv/d/link
chmod 4751 /srv/d/one; touch -d @1000000000.5 /srv/d/one; ln /srv/d/one /srv/d/two; rm /etc/hostname
head -c 300000 /dev/urandom > /tmp/d/random; truncate -s 1000000 /tmp/d/random; rm -r /etc/security
"""
SHOW = """
find /srv /tmp -mindepth 1 -not -type d -printf '%p %y %m %U %G %n %s %l\\n' | sort
find /srv/d /tmp/d -type f -printf '%p %T@\\n' | sort; sha256sum /tmp/d/random /srv/d/*
ls /etc/hostname /etc/security
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """What is asserted here does not depend on the event loop."""
    return "asyncio"


@pytest.fixture(scope="module")
async def host(anyio_backend: str) -> AsyncIterator[Host]:
    """This machine with runsc; skipped with the reason where it does not run."""
    async with open_host("runsc") as found:
        yield found


async def test_another_kernel_is_seen_and_its_platform_told(host: Host) -> None:
    """The level rests on the kernel that shows inside; how it gets at its processes is recorded."""
    async with host.open_sandbox("host") as box:
        told = await box.isolation()
        assert (await box.run("uname -r")).stdout.strip() in told.kernel
    assert platform.release() not in told.kernel
    assert told.level == host.level == "user-kernel"
    assert told.platform in ("systrap", "ptrace", "kvm")
    if not told.unseen:
        assert {"ipc", "mnt", "net", "pid", "user", "uts"} <= {*told.own}
    assert (told.seccomp, told.no_new_privs) == (2, True), "of gVisor's own process"
    assert not any(outside == 0 for _, outside, _ in told.ids)


async def test_its_kernel_is_confined_on_this_host(host: Host) -> None:
    """All but our own program have ids of the sandbox's, namespaces of their own, a filter of
    system calls, no way to more privileges, and no capability that reaches out. None of gVisor's is there to wait.
    """
    async with host.open_sandbox("host") as box:
        await box.run("true")
        observed = box._life.observe()
        assert observed is not None
        checked = 0
        for pid in observed[0]:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"oci-enter" in words:
                continue
            status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
            assert status["Uid"].split()[0] != "0"
            spaces = ("ipc", "mnt", "net", "pid", "user") if os.geteuid() == 0 else ()
            for space in spaces:
                assert os.readlink(f"/proc/{pid}/ns/{space}") != os.readlink(f"/proc/self/ns/{space}")
            checked += 1
        assert checked >= 2


async def test_what_it_writes_is_the_layer_of_the_sandbox(host: Host) -> None:
    """A snapshot of it shows at the container level what was written, removed, linked and dated at this one, and holds
    nothing that gVisor made for its mounts.
    """
    try:
        native = await Host.local("native")
    except Refused as refused:
        pytest.skip(str(refused))
    async with host.open_sandbox("host") as box:
        assert (await box.run(WRITE)).ok
        here = (await box.run(SHOW)).stdout
        kept = await box.snapshot()
    assert "/srv/d/one f 4751" in here
    assert not {"dev", "proc", "sys"} & set(os.listdir(kept.layers[0].source))
    async with native.open_sandbox(kept) as box:
        assert (await box.run(SHOW)).stdout == here


async def test_processes_without_end_end_the_sandbox_as_its_own_doing(host: Host) -> None:
    """Root inside undoes gVisor's limit: the one of this host's is met, and named."""
    if "processes" not in host.probe.enforces:
        pytest.skip("processes are not counted here")
    async with host.open_sandbox("host", limits=Limits(processes=20)) as box:
        storm = "for i in $(seq 400); do sleep 300 & done"
        with pytest.raises(SandboxLost) as lost:
            await box.run(f"echo 9000 > /sys/fs/cgroup/pids/pids.max; {storm}", timeout=90)
    assert lost.value.reason == "processes"
    assert isinstance(lost.value.limit, HitLimit)
    assert (lost.value.limit.kind, lost.value.limit.limit, lost.value.limit.cause) == ("processes", 20, "task")


async def test_a_candidate_cannot_throw_its_verdict_away(host: Host) -> None:
    """Root inside can end the first process, which would be a loss of the infrastructure: a candidate that is wrong
    would be tried again. It is somebody else, for whom all that a right one needs works as for root.
    """
    if not host.probe.users:
        pytest.skip("one id inside: candidates are root")
    test = "def check(candidate):\n    assert candidate(2) == 3\n"
    task = Task(id="t/1", instruction="", judge=FunctionTests(prompt="", entry_point="f", test=test, timeout=20))
    wrong = "import os\ndef f(x):\n    {}\n    return 0\n"
    right = """
import os, pathlib, subprocess, tempfile
def f(x):
    pathlib.Path("here").write_text("1")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"2")
    done = subprocess.run(["/bin/sh", "-c", "exit 1"])
    assert os.getuid() and os.getgid() and not os.getgroups()[1:]
    return x + done.returncode
"""
    async with FunctionVerifier(host) as verifier:
        for attack in ("os.kill(1, 9)", "os.kill(-1, 9)"):
            verdict = await verifier.judge(task, Candidate(completion=wrong.format(attack)))
            assert verdict.ending == "failed", verdict
        verdict = await verifier.judge(task, Candidate(completion=right))
        assert verdict.ending == "passed", verdict


async def test_a_template_whose_tmp_is_a_link_is_refused(host: Host, tmp_path: Path) -> None:
    """It would be mounted where the link leads: on this host."""
    tmp_path.chmod(0o755)
    (tmp_path / "tmp").symlink_to("/etc")
    template = Template(digest="sha256:0", name="t", layers=(Layer("/", str(tmp_path)),), env={})
    with pytest.raises(CreateFailed, match="/tmp"):
        async with host.open_sandbox(template, limits=Limits(disk=MIB)):
            pass


async def test_a_template_without_tmp_has_one_that_counts(host: Host, tmp_path: Path) -> None:
    """It is made in the writable layer."""
    tmp_path.chmod(0o755)
    (tmp_path / "usr").mkdir()
    for name in ("bin", "lib", "lib64"):
        (tmp_path / name).symlink_to(f"usr/{name}")
    template = Template(digest="sha256:0", name="t", layers=(Layer("/", str(tmp_path)), Layer("/usr", "/usr")), env={})
    async with host.open_sandbox(template, limits=Limits(disk=MIB), user=None) as box:
        assert "No space left" in (await box.run("head -c 3M /dev/zero > /tmp/fill", user="0")).stderr


async def test_a_layer_of_its_own_lies_below_tmp(host: Host, tmp_path: Path) -> None:
    """As a mount of a build's step has it; /tmp is a mount here, and it is in that."""
    tmp_path.chmod(0o755)
    root, there = tmp_path / "root", tmp_path / "there"
    (root / "tmp/there").mkdir(parents=True)
    there.mkdir()
    (there / "seen").write_text("seen")
    whole = open_store().resolve("host")
    layers = (Layer("/", str(root)), *whole.layers, Layer("/tmp/there", str(there)))
    async with host.open_sandbox(msgspec.structs.replace(whole, digest="sha256:1", layers=layers)) as box:
        assert (await box.run("cat /tmp/there/seen && touch /tmp/there/new", user="0")).stdout == "seen"
    assert os.listdir(there) == ["seen"]


async def test_a_full_fingerprint_is_of_what_is_inside(host: Host) -> None:
    """It is taken by the guest, behind a kernel of its own."""
    await sees_what_is_inside(host, small_template(open_store()))


async def test_more_processes_than_gvisor_lives_with_are_refused(host: Host) -> None:
    """It would end on the way to that limit, whose doing nobody could tell."""
    if "processes" not in host.probe.enforces:
        pytest.skip("nothing here limits processes, and the limit is refused for that")
    with pytest.raises(Refused, match=r"processes of 5000: gVisor lives with 4000"):
        async with host.open_sandbox("host", limits=Limits(processes=5000)):
            pass


async def test_a_build_asks_for_what_gvisor_can_hold(host: Host) -> None:
    """The limits that a step has where nothing is said are none that this runtime refuses."""
    async with host.open_sandbox("host", limits=limits_of(host, Limits())) as box:
        assert (await box.run("echo here")).stdout == "here\n"


async def test_one_without_a_child_subreaper_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian 12's: what it lacks is found inside a sandbox of it."""
    if "20221219" not in version(OLD):
        pytest.skip(f"{OLD} is not the one of Debian 12")
    with pytest.raises(Refused) as refused:
        await Host.local(f"oci:{OLD}")
    found = [Missing.of(item) for item in refused.value.missing]
    assert any("no child subreaper" in item.what for item in found)
    assert all("PROOFBOX_RUNSC" in item.remedy for item in found)
