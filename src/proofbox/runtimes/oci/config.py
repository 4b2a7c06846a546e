"""The bundle's ``config.json``: what the OCI runtime specification 1.0.2 calls it, as plain data. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from proofbox.host.cgroup import PROCESS_RESERVE
from proofbox.host.idmap import IdMap
from proofbox.host.subids import Extent
from proofbox.model.limits import DEFAULTS
from proofbox.model.spec import SandboxSpec
from proofbox.runtimes.oci.programs import Make

GUEST: Final = "/dev/.proofbox"
"""Where the guest is seen inside: on the runtime's own file system, so that it leaves no trace in what is written."""

TMP: Final = "/tmp"


@dataclass(frozen=True, slots=True)
class Confined:
    """What a sandbox is confined by; the OCI names for the data in ``host``. ``seccomp`` may be encoded already."""

    capabilities: tuple[str, ...]
    masked: tuple[str, ...]
    readonly: tuple[str, ...]
    seccomp: Any


def bundle_config(
    spec: SandboxSpec,
    stage: str,
    mapped: IdMap | None,
    shown: Sequence[str],
    confined: Confined,
    make: Make,
    *,
    proof: bool = False,
) -> dict[str, Any]:
    """The configuration of one sandbox for an OCI runtime of that make.

    ``stage`` is where the runtime sees the bundle. Without ``mapped`` there is one id, and no user namespace but
    the one that the runtime runs in. ``shown`` are the places inside of the bundle's ``volume/0``, ``volume/1``, ...
    With ``proof`` the guest first finds out whether the kernel inside does what it needs.
    """
    namespaces = ["pid", "ipc", "uts", "mount", "cgroup"] + ["network"] * (spec.network == "none")
    linux: dict[str, Any] = {"maskedPaths": confined.masked, "readonlyPaths": confined.readonly}
    if not make.own_kernel:
        linux["seccomp"] = confined.seccomp
    if mapped is not None:
        namespaces.append("user")
        linux |= {"uidMappings": _mappings(mapped.uids), "gidMappings": _mappings(mapped.gids)}
    linux["namespaces"] = [{"type": kind} for kind in namespaces]
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "root": {"path": "rootfs", "readonly": False},
        "mounts": _mounts(stage, mapped is not None, shown, make),
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [GUEST, "guest", str(make.channel), *_words(spec, make, proof)],
            "env": [],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), confined.capabilities),
            # No core file is that small, and 1 (not 0) keeps the host's handler of core dumps from being started.
            "rlimits": [{"type": "RLIMIT_CORE", "soft": 1, "hard": 1}],
        },
        "linux": linux,
    }


def _words(spec: SandboxSpec, make: Make, proof: bool) -> list[str]:
    """What the guest is told besides. A control group outside cannot refuse gVisor a process without ending it."""
    words = ["proof"] if proof else []
    if make.own_kernel:
        # Where no control group of this host holds them, this one keeps at least the programs of users in bounds.
        most = spec.limits.processes or DEFAULTS.processes or 0
        words += ["no-spare", "processes", str(most + PROCESS_RESERVE)]
    return words


def _mappings(extents: Sequence[Extent]) -> list[dict[str, int]]:
    found: list[dict[str, int]] = []
    inside = 0
    for extent in extents:
        found.append({"containerID": inside, "hostID": extent.first, "size": extent.count})
        inside += extent.count
    return found


def _mounts(stage: str, users: bool, shown: Sequence[str], make: Make) -> list[dict[str, Any]]:
    terminals = ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"] + ["gid=5"] * users
    return [
        _mount("/proc", "proc", "proc", "nosuid", "nodev", "noexec"),
        # Not sticky: with fs.protected_regular a write to /dev/null by another user than its owner would fail.
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=64k"),
        _mount("/dev/pts", "devpts", "devpts", *terminals),
        # On the writable layer, so that what is put there counts there.
        _mount("/dev/shm", "bind", f"{stage}/layer/shm", "bind", "nosuid", "nodev"),
        _mount("/dev/mqueue", "mqueue", "mqueue", "nosuid", "noexec", "nodev"),
        *(_own_kernel(stage) if make.own_kernel else ()),
        *(
            _mount(target, "bind", f"{stage}/volume/{index}", "rbind", "ro", "nosuid", "nodev")
            for index, target in enumerate(shown)
        ),
    ]


def _own_kernel(stage: str) -> list[dict[str, Any]]:
    return [
        # gVisor would put a file system in memory there, past the limit on the disk and lost to who keeps the layer.
        _mount(TMP, "bind", f"{stage}/rootfs{TMP}", "rbind", "nosuid", "nodev"),
        # gVisor's own groups: the guest sets the limit on processes there.
        _mount("/sys/fs/cgroup", "cgroup", "cgroup", "ro", "nosuid", "nodev", "noexec"),
    ]


def _mount(destination: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": options}
