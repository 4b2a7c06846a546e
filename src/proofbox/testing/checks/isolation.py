"""What a sandbox of level ``container`` and above cannot see and cannot do."""

from __future__ import annotations

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

from proofbox.sandbox.api import Sandbox
from proofbox.testing.needs import OpenBox, alive, check

FORBIDDEN = {
    12: "net_admin",
    13: "net_raw",
    16: "sys_module",
    17: "sys_rawio",
    19: "sys_ptrace",
    20: "sys_pacct",
    21: "sys_admin",
    22: "sys_boot",
    23: "sys_nice",
    25: "sys_time",
    27: "mknod",
    34: "syslog",
    38: "perfmon",
    39: "bpf",
}


LOOPBACK = """
import socket
for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
    try:
        server = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        socket.create_connection(server.getsockname()[:2], timeout=5).close()
        print(host, "works")
    except OSError as error:
        print(host, error)
"""


@pytest.mark.parametrize("kind", ["pid", "ipc", "uts", "net", "mnt", "cgroup"])
@check(level="container", shared_kernel=True)
async def test_the_sandbox_has_namespaces_of_its_own(box: Sandbox, kind: str) -> None:
    """Each kind of namespace is another one than the host's."""
    inside = (await box.run(["readlink", f"/proc/self/ns/{kind}"])).stdout.strip()
    assert inside.startswith(f"{kind}:[")
    assert inside != os.readlink(f"/proc/self/ns/{kind}")


@check(level="container", shared_kernel=True)
async def test_how_it_is_kept_apart_is_told_with_evidence(box: Sandbox) -> None:
    """What is reported of a sandbox is what a program inside finds, and was read from outside."""
    told = await box.isolation()
    assert {"pid", "user"} <= {*told.own}
    assert told.shared == ()
    for kind in told.own:
        assert (await box.run(["readlink", f"/proc/self/ns/{kind}"])).stdout.strip() != os.readlink(
            f"/proc/self/ns/{kind}"
        )
    status = dict(re.findall(r"(\w+):\s+(\w+)", (await box.run("cat /proc/self/status")).stdout))
    assert (told.seccomp, told.no_new_privs) == (int(status["Seccomp"]), status["NoNewPrivs"] == "1") == (2, True)
    assert sum(1 << number for number in told.capabilities or ()) == int(status["CapBnd"], 16)
    assert [row[0] for row in told.ids][:1] == [0]
    assert (told.runtime, told.level) == (box.host.runtime_name, box.host.level)
    assert os.uname().release in told.kernel
    assert os.uname().release in told.host_kernel


@check(level="container", as_linux=("ids",))
async def test_root_inside_is_nobody_outside(box: Sandbox) -> None:
    """The sandbox's root is mapped to another user, or is root of a namespace below one of a user who is not."""
    mapped = (await box.run("cat /proc/self/uid_map")).stdout.split()
    if sys.platform == "linux" and os.geteuid() != 0:
        space = (await box.run(["readlink", "/proc/self/ns/user"])).stdout.strip()
        assert mapped[:2] != ["0", "0"] or space != os.readlink("/proc/self/ns/user")
        return
    assert mapped[0] == "0"
    assert mapped[1] != "0", "uid 0 inside is uid 0 of the host"


@check(level="container")
async def test_processes_of_the_host_are_invisible(box: Sandbox, marker: str) -> None:
    """A process list inside holds the sandbox's own, few, and no signal reaches another."""
    with subprocess.Popen(["sleep", marker]) as outside:  # noqa: ASYNC220 - a start, and it has to be a child of ours
        assert await alive(box, marker) == []
        await box.run(f"kill -9 {outside.pid}; pkill -9 -f {marker}; killall -9 sleep; kill -9 -1")
        assert outside.poll() is None
        outside.kill()
    count = (await box.run("ls -d /proc/[0-9]* | wc -l")).stdout
    assert int(count) < 10


@check(level="container", as_linux=("first process",))
async def test_the_first_process_cannot_be_harmed(open_box: OpenBox) -> None:
    """Signals to process 1 and to everything leave the sandbox usable, as its root too."""
    async with open_box() as box:
        for number in (9, 15, 19, 11, 6):
            await box.run(f"kill -{number} 1; kill -{number} -1")
        assert (await box.run("echo on")).stdout == "on\n"
        for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd/0", "/proc/1/root/etc/hostname"):
            tried = await box.run(f"echo x > {path}")
            assert path.endswith("hostname") or not tried.ok
        assert (await box.run("echo on")).stdout == "on\n"


@check(level="container")
async def test_places_of_the_host_are_invisible(box: Sandbox, tmp_path: pathlib.Path) -> None:
    """Nothing of the host's homes, temporary files, state and own directories is there."""
    (tmp_path / "of-the-host").write_text("x")
    assert not (await box.run(["ls", str(tmp_path)])).ok
    for place in ("/home", "/root", "/var/lib", "/run", "/tmp", "/srv", "/mnt"):
        inside = set((await box.run(["ls", "-A", place])).stdout.split())
        host = {path.name for path in pathlib.Path(place).iterdir()} if os.access(place, os.R_OK) else set()
        shared = (inside & host) - {".bashrc", ".profile", "lock", "user", "shm", "misc", "dpkg", "apt", "python"}
        assert not shared, f"{place} shows {shared} of the host"
    found = await box.run(f"find / -xdev -name of-the-host -not -path '/proc/*' 2>/dev/null; echo {os.getpid()}")
    assert found.stdout == f"{os.getpid()}\n"


@check(level="container")
async def test_no_network_interface_but_loopback(box: Sandbox) -> None:
    """There is one interface, and no route out of the sandbox."""
    lines = (await box.run("cat /proc/net/dev")).stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]
    assert (await box.run("cat /proc/net/route")).stdout.count("\n") <= 1
    routes6 = (await box.run("cat /proc/net/ipv6_route 2>/dev/null")).stdout.splitlines()
    assert {line.split()[-1] for line in routes6} <= {"lo"}


@check(level="container", program="python3")
async def test_loopback_works(box: Sandbox) -> None:
    """A server inside can be reached from inside, by address and by name."""
    result = await box.run(["python3", "-I", "-S", "-c", LOOPBACK])
    assert "127.0.0.1 works" in result.stdout, result.stdout + result.stderr
    assert "localhost works" in result.stdout, result.stdout
    assert "127.1.2.3 works" in result.stdout, result.stdout


@check(level="container", program="python3")
async def test_servers_of_the_host_cannot_be_reached(box: Sandbox) -> None:
    """Neither by its loopback, nor by its addresses, nor by an abstract socket; and no name is resolved."""
    abstract = f"proofbox-check-{os.getpid()}"
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_UNIX) as unix:  # noqa: S104 - a target
        unix.bind("\0" + abstract)
        unix.listen()
        port = server.getsockname()[1]
        text = (
            "import socket\n"
            f"for address in ('127.0.0.1', '169.254.169.254', '8.8.8.8', '10.0.0.1', '::1', {_own_address()!r}):\n"
            "    try:\n"
            f"        socket.create_connection((address, {port}), timeout=0.5); print('reached', address)\n"
            "    except OSError: pass\n"
            "u = socket.socket(socket.AF_UNIX)\n"
            "try:\n"
            f"    u.connect('\\0{abstract}'); print('reached the socket')\n"
            "except OSError: pass\n"
            "try: print('resolved', socket.gethostbyname('example.com'))\n"
            "except OSError: pass\n"
        )
        result = await box.run(["python3", "-I", "-S", "-c", text], timeout=60)
        assert (result.stdout, result.outcome.__class__.__name__) == ("", "Exited"), result.stderr


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


@check(level="container")
async def test_capabilities_that_reach_out_are_not_there(box: Sandbox) -> None:
    """Not in the bounding set, so that no program can gain them."""
    status = dict(re.findall(r"(\w+):\s+(\w+)", (await box.run("cat /proc/self/status")).stdout))
    bounding = int(status["CapBnd"], 16)
    assert [name for bit, name in FORBIDDEN.items() if bounding >> bit & 1] == []


@check(level="container", as_linux=("status",))
async def test_nothing_gains_privileges_by_exec(box: Sandbox) -> None:
    """No ambient capabilities, and no new ones."""
    status = dict(re.findall(r"(\w+):\s+(\w+)", (await box.run("cat /proc/self/status")).stdout))
    assert int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1"


@check(level="container", users=True)
async def test_another_user_has_no_capability(box: Sandbox) -> None:
    """A command that does not run as the sandbox's root holds none."""
    status = (await box.run("grep -E 'Cap(Eff|Prm|Inh|Amb)' /proc/self/status", user="nobody")).stdout
    assert {line.split()[1] for line in status.splitlines()} == {"0" * 16}


@check(level="container", shared_kernel=True)
async def test_system_calls_are_filtered(box: Sandbox) -> None:
    """A filter is installed, and what it is there for fails."""
    assert (await box.run("grep Seccomp: /proc/self/status")).stdout.split() == ["Seccomp:", "2"]
    for command in (
        "unshare --user true",
        "unshare --net true",
        "unshare --mount true",
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "dmesg",
        "chroot / sh -c 'mount -t proc proc /mnt'",
        "nsenter -t 1 -m true",
    ):
        assert not (await box.run(command, timeout=20)).ok, command


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/drop_caches",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/release_agent",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/sda",
    ],
)
@check(level="container", shared_kernel=True)
async def test_the_kernels_own_files_cannot_be_written(box: Sandbox, path: str) -> None:
    """Neither opened for writing, nor made writable first."""
    assert not (await box.run(f"test -e {path} && : >> {path}")).ok
    assert not (await box.run(f"test -e {path} && chmod 666 {path} && echo x >> {path}")).ok


@pytest.mark.parametrize("path", ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi"])
@check(level="container", shared_kernel=True)
async def test_the_kernels_secrets_cannot_be_read(box: Sandbox, path: str) -> None:
    """They are masked: empty, or not there."""
    assert (await box.run(f"cat {path}/* {path} 2>/dev/null | head -c 100")).stdout == ""


@check(level="container")
async def test_devices_are_the_harmless_ones(box: Sandbox, place: str) -> None:
    """Those that programs need work; no other one is there, none can be made."""
    names = set((await box.run(["ls", "-A", "/dev"])).stdout.split())
    assert {"null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr", "shm"} <= names
    nodes = set((await box.run("find /dev -type c -o -type b")).stdout.split())
    harmless = ("null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts/ptmx")
    # A kernel of its own answers there, and no driver of the host's.
    own = ("net/tun", "fuse") if box.host.probe.level == "user-kernel" else ()
    assert nodes <= {f"/dev/{name}" for name in (*harmless, *own)}
    assert (await box.run("head -c 4 /dev/urandom | wc -c; head -c 3 /dev/zero | wc -c; echo x > /dev/null")).ok
    assert not (await box.run("echo x > /dev/full")).ok
    made = await box.run(f"mknod {place}/disk b 8 0 && head -c 1 {place}/disk")
    assert not made.ok
