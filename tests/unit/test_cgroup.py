"""Control groups: where they go, what is written, what is read, on trees made by hand and on this machine's own."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
from pathlib import Path

import pytest

from proofbox.errors import Busy, CreateFailed
from proofbox.host import cgroup_apply, cgroup_room
from proofbox.host.cgroup import NOWHERE, PROCESS_RESERVE, TOP, Controller, Plan, find_place, plan_group
from proofbox.host.cgroup_events import EventCounters
from proofbox.model.limits import Limits
from proofbox.model.outcome import Usage

LIMITS = Limits(memory=64 << 20, processes=10, cpus=1.5)

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct {mode},relatime - cgroup cgroup rw,cpu,cpuacct
33 31 0:30 {root} /sys/fs/cgroup/memory {mode},relatime - cgroup cgroup rw,memory
34 31 0:31 {root} /sys/fs/cgroup/pids {mode},relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified {mode},relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "41 23 0:38 {root} /sys/fs/cgroup {mode},relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


def fabricate(root: Path, mounts: str, own: str, files: dict[str, str]) -> Path:
    """A host's files below ``root``."""
    for name, text in {"proc/self/mountinfo": mounts, "proc/self/cgroup": own, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v1_host(root: Path, *, mount_root: str = "/", mode: str = "rw", swap: bool = True) -> Path:
    """Hybrid layout: controllers on v1, two of them together, beside an empty v2 hierarchy."""
    files = {
        "sys/fs/cgroup/memory/job/cgroup.procs": "",
        "sys/fs/cgroup/pids/cgroup.procs": "",
        "sys/fs/cgroup/cpu,cpuacct/job/cgroup.procs": "",
        "sys/fs/cgroup/unified/cgroup.controllers": "",
        "sys/fs/cgroup/unified/cgroup.subtree_control": "",
        "sys/fs/cgroup/unified/cgroup.procs": "1\n",
    }
    if swap:
        files["sys/fs/cgroup/memory/job/memory.memsw.limit_in_bytes"] = "0"
    own = "8:pids:/\n4:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n"
    return fabricate(root, V1_MOUNTS.format(root=mount_root, mode=mode), own, files)


def v2_group(path: str, controllers: str, given: str, procs: str) -> dict[str, str]:
    """The files of one v2 group that is not the root."""
    texts = {"type": "domain\n", "controllers": controllers, "subtree_control": given, "procs": procs}
    return {f"sys/fs/cgroup{path}/cgroup.{name}": text for name, text in texts.items()}


def test_v1_groups_go_below_our_own(tmp_path: Path) -> None:
    """Each hierarchy has a path of its own; two controllers on one hierarchy share a directory."""
    place = find_place(v1_host(tmp_path))
    base = tmp_path / "sys/fs/cgroup"
    assert place.version == 1
    assert place.directories == {
        "memory": base / "memory/job",
        "pids": base / "pids",
        "cpu": base / "cpu,cpuacct/job",
        "cpuacct": base / "cpu,cpuacct/job",
    }
    assert place.enforces() == {"memory", "memory_reserve", "processes", "cpus", "cpu_time", "command_cpu_time"}
    plan = plan_group(place, "owner", "box", LIMITS)
    assert plan.directories == tuple(f"{root}/{TOP}/owner/box" for root in place.roots())
    memory, cpu, pids = (plan.by_controller[each] for each in ("memory", "cpu", "pids"))
    assert plan.values == (
        (f"{memory}/memory.limit_in_bytes", str(64 << 20)),
        (f"{memory}/memory.memsw.limit_in_bytes", str(64 << 20)),
        (f"{pids}/pids.max", str(10 + PROCESS_RESERVE)),
        (f"{cpu}/cpu.cfs_period_us", "100000"),
        (f"{cpu}/cpu.cfs_quota_us", "150000"),
        *((f"{directory}/cgroup.procs", "") for directory in plan.directories),
    )


def test_v1_without_swap_accounting_forbids_swapping(tmp_path: Path) -> None:
    """Else a sandbox could use swap beyond its limit on memory."""
    plan = plan_group(find_place(v1_host(tmp_path, swap=False)), "owner", "box", LIMITS)
    assert (f"{plan.by_controller['memory']}/memory.swappiness", "0") in plan.values


def test_v1_in_a_container_uses_what_is_mounted(tmp_path: Path) -> None:
    """There the mount shows a group further down, and /proc/self/cgroup names it from the host's root."""
    host = v1_host(tmp_path, mount_root="/docker/f00")
    (host / "proc/self/cgroup").write_text("8:pids:/docker/f00\n4:memory:/docker/f00/job\n2:cpu,cpuacct:/elsewhere\n")
    place = find_place(host)
    base = tmp_path / "sys/fs/cgroup"
    assert place.directories["memory"] == base / "memory/job"
    assert place.directories["pids"] == base / "pids"
    assert place.directories["cpu"] == base / "cpu,cpuacct"


def test_read_only_hierarchies_give_no_place_but_a_reason(tmp_path: Path) -> None:
    """As in a container that was started without privileges."""
    place = find_place(v1_host(tmp_path, mode="ro"))
    assert not place.directories
    assert "memory" in " ".join(place.missing)
    assert plan_group(place, "owner", "box", LIMITS).directories == ()


def test_v2_root_uses_the_root_group(tmp_path: Path) -> None:
    """The root group is the only one that may hold processes and hand controllers down."""
    files = {
        "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
        "sys/fs/cgroup/cgroup.subtree_control": "cpu memory\n",
        "sys/fs/cgroup/cgroup.procs": "1\n",
        **v2_group("/user.slice", "memory pids\n", "", "77\n"),
    }
    place = find_place(fabricate(tmp_path, V2_MOUNTS.format(root="/", mode="rw"), "0::/user.slice\n", files))
    assert set(place.directories.values()) == {tmp_path / "sys/fs/cgroup"}
    assert place.enforces() == {"memory", "memory_reserve", "processes", "cpus", "cpu_time", "command_cpu_time"}
    plan = plan_group(place, "owner", "box", LIMITS)
    group = str(tmp_path / "sys/fs/cgroup" / TOP / "owner/box")
    assert plan.directories == (group,)
    assert plan.values == (
        (f"{group}/memory.max", str(64 << 20)),
        (f"{group}/memory.swap.max", "0"),
        (f"{group}/pids.max", str(10 + PROCESS_RESERVE)),
        (f"{group}/cpu.max", "150000 100000"),
        (f"{group}/cgroup.procs", ""),
    )


def test_v2_delegated_uses_the_nearest_group_that_may_have_children(tmp_path: Path) -> None:
    """Our own group holds us and has handed nothing down, so it cannot; the one above it, with two controllers, can."""
    files = {
        **v2_group("/user.slice/app.slice", "cpu memory pids\n", "memory pids\n", ""),
        **v2_group("/user.slice/app.slice/job.scope", "memory pids\n", "", "77\n"),
        **v2_group("/user.slice", "cpu memory pids\n", "cpu memory pids\n", ""),
        **v2_group("", "cpu memory pids\n", "cpu memory pids\n", "1\n"),
    }
    own = "0::/user.slice/app.slice/job.scope\n"
    place = find_place(fabricate(tmp_path, V2_MOUNTS.format(root="/", mode="rw"), own, files))
    assert place.directories["memory"] == tmp_path / "sys/fs/cgroup/user.slice/app.slice"


def test_v2_that_hands_nothing_down_is_no_place(tmp_path: Path) -> None:
    """A container's root group with all of its processes in it: said in words, not tried."""
    files = v2_group("", "cpu memory pids\n", "", "1\n77\n")
    place = find_place(fabricate(tmp_path, V2_MOUNTS.format(root="/docker/f00", mode="rw"), "0::/\n", files))
    assert not place.directories
    assert "delegated" in place.missing[0]


def test_v2_our_own_group_is_crowded_when_only_its_processes_stand_in_the_way(tmp_path: Path) -> None:
    """A scope that is delegated to us with us in it: no place yet, but one that can be made."""
    files = v2_group("/job.scope", "cpu memory pids\n", "", "77\n")
    place = find_place(fabricate(tmp_path, V2_MOUNTS.format(root="/", mode="rw"), "0::/job.scope\n", files))
    if os.geteuid() == 0:  # the fabricated root group has no files, and so is not taken
        assert not place.directories
    assert place.crowded == tmp_path / "sys/fs/cgroup/job.scope"


def test_only_ancestors_and_descendants_make_room() -> None:
    """A group is split only if all who live in it are family; the kernel's own threads are not."""
    with subprocess.Popen(["sleep", "60"]) as child:
        family = cgroup_room._family({os.getpid(), os.getppid(), child.pid, 2})
        child.kill()
    assert family == {os.getpid(), os.getppid(), child.pid} - {0}


def test_no_hierarchy_at_all(tmp_path: Path) -> None:
    """Neither v1 nor v2 is mounted."""
    assert find_place(fabricate(tmp_path, "", "0::/\n", {})).missing == NOWHERE.missing


def test_v2_owner_directories_get_the_controllers(tmp_path: Path) -> None:
    """From the place down to the owner's directory, those that are lacking and no others."""
    files = {
        "sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
        "sys/fs/cgroup/cgroup.subtree_control": "cpu memory pids\n",
        "sys/fs/cgroup/cgroup.procs": "1\n",
        f"sys/fs/cgroup/{TOP}/cgroup.subtree_control": "cpu\n",
        f"sys/fs/cgroup/{TOP}/owner/cgroup.subtree_control": "",
    }
    place = find_place(fabricate(tmp_path, V2_MOUNTS.format(root="/", mode="rw"), "0::/\n", files))
    leftovers = cgroup_apply.prepare(place, "owner")
    base = tmp_path / "sys/fs/cgroup"
    assert leftovers == (str(base / TOP / "owner"), str(base / TOP))
    assert (base / TOP / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (base / TOP / "owner/cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_v2_counters(tmp_path: Path) -> None:
    """Microseconds become seconds; what a kernel lacks is None, not 0."""
    files = {
        "sys/fs/cgroup/cgroup.controllers": "memory pids\n",
        "sys/fs/cgroup/cgroup.subtree_control": "memory pids\n",
    }
    files["sys/fs/cgroup/cgroup.procs"] = ""
    place = find_place(fabricate(tmp_path, V2_MOUNTS.format(root="/", mode="rw"), "0::/\n", files))
    plan = plan_group(place, "owner", "box", LIMITS)
    group = Path(plan.directories[0])
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text(
        "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nthrottled_usec 500000\n"
    )
    (group / "cpu.pressure").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=1250000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )
    (group / "memory.current").write_text("4096\n")
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n")
    (group / "pids.events").write_text("max 5\n")
    (group / "pids.current").write_text("3\n")
    assert cgroup_apply.usage(plan) == Usage(
        cpu_user=2.0,
        cpu_system=1.0,
        memory_peak=None,
        memory_now=4096,
        oom_kills=2,
        processes_now=3,
        process_denials=5,
        throttled=0.5,
        cpu_waits=1.25,
    )
    assert cgroup_apply.oom_kills(plan) == 2


def test_counters_of_a_group_that_is_gone_are_none(tmp_path: Path) -> None:
    """Reading may race with the end of the sandbox."""
    assert cgroup_apply.usage(plan_group(find_place(v1_host(tmp_path)), "owner", "box", LIMITS)) == Usage()


@pytest.fixture
def owner() -> str:
    """An owner id that nobody else has."""
    return f"test{secrets.token_hex(4)}"


needs_groups = pytest.mark.skipif(
    not {"memory", "pids"} <= find_place().directories.keys(), reason="this process may not write control groups here"
)


@needs_groups
def test_a_real_group_holds_its_process_and_goes(owner: str) -> None:
    """Made, joined, limited, counted, busy while the process lives, swept together with it."""
    place = find_place()
    leftovers = cgroup_apply.prepare(place, owner)
    plan = plan_group(place, owner, "box", LIMITS)
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        cgroup_apply.apply(plan, sleeper.pid)
        assert all(sleeper.pid in cgroup_apply.members(directory) for directory in plan.directories)
        used = cgroup_apply.usage(plan)
        assert used.processes_now == 1
        assert used.oom_kills == 0
        assert not cgroup_apply.remove(plan.directories)
        assert cgroup_apply.sweep(place, owner) == len(plan.directories)
        assert sleeper.wait() == -signal.SIGKILL
    assert not any(os.path.exists(path) for path in (*plan.directories, *leftovers[::2]))


@needs_groups
def test_groups_are_swept_from_another_place(owner: str, tmp_path: Path) -> None:
    """The sweeper may be in another group than the dead owner was; the owner's own record leads it."""
    place = find_place()
    record = tmp_path / "groups"
    made = cgroup_apply.begin(record, place, owner)
    plan = plan_group(place, owner, "box", LIMITS)
    for directory in plan.directories:
        os.mkdir(directory)
    record.write_text(record.read_text() + "/etc\n/somewhere/else/cut-o")
    assert cgroup_apply.sweep(NOWHERE, owner) == 0
    assert cgroup_apply.sweep_remembered(record, NOWHERE, owner) == len(plan.directories)
    assert not record.exists()
    assert not any(os.path.exists(path) for path in (*plan.directories, *made[::2]))
    assert cgroup_apply.sweep_remembered(record, NOWHERE, owner) == 0


@needs_groups
def test_a_plan_that_fails_leaves_nothing(owner: str) -> None:
    """The kernel refuses the process number, and what was made before is removed again."""
    place = find_place()
    cgroup_apply.prepare(place, owner)
    plan = plan_group(place, owner, "box", LIMITS)
    with pytest.raises(CreateFailed, match="control group"):
        cgroup_apply.apply(plan, 2**22 + 1)
    assert not any(os.path.exists(path) for path in plan.directories)
    assert cgroup_apply.sweep(place, owner) == 0


def test_event_counters_hold_no_descriptor_after_one_reading_and_none_after_their_end(tmp_path: Path) -> None:
    """One reading of a group's events leaves nothing open, later ones hold two files, and the end closes them."""
    (tmp_path / "memory.events").write_text("low 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "pids.events").write_text("max 7\n")
    both: dict[Controller, str] = {"memory": str(tmp_path), "pids": str(tmp_path)}
    counters = EventCounters(Plan(by_controller=both, version=2))
    before = set(os.listdir("/proc/self/fd"))
    assert counters.read() == (1, 7)
    assert set(os.listdir("/proc/self/fd")) == before
    assert counters.read() == (1, 7)
    (tmp_path / "pids.events").write_text("max 8\n")
    assert counters.read() == (1, 8)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    counters.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert EventCounters(Plan()).read() == (None, None)


def test_counters_that_cannot_be_opened_are_told_and_leave_nothing_open(tmp_path: Path) -> None:
    """Of two files the first one is closed again, whichever of them it is for which there is no descriptor left."""
    (tmp_path / "memory.events").write_text("oom_kill 3\n")
    (tmp_path / "pids.events").write_text("max 4\n")
    counters = EventCounters(Plan(by_controller={"memory": str(tmp_path), "pids": str(tmp_path)}, version=2))
    before = set(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
        with pytest.raises(Busy, match=r"pids\.events: Too many open files"):
            counters.read()
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        with pytest.raises(Busy, match=r"memory\.events: Too many open files"):
            counters.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert set(os.listdir("/proc/self/fd")) == before
    assert counters.read() == (3, 4)
    counters.close()
