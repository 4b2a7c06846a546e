"""One sandbox's bundle on the host, and the command that runs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from proofbox.host.cgroup import Plan
from proofbox.host.confinement import confinement
from proofbox.host.idmap import IdMap
from proofbox.host.names import name_files
from proofbox.host.seccomp.oci import oci_profile
from proofbox.host.seccomp.policy import machine, policy
from proofbox.kit.binary import guest_path
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template, targets
from proofbox.runtime.contract import Below
from proofbox.runtimes.oci.config import GUEST, Confined, bundle_config

PREFIX: Final = "oci-"
DIRECTORIES: Final = ("rootfs", "layer", "lower", "volume", "state")
STAGES: Final = ("/mnt", "/tmp", "/run", "/var")
"""Where a bundle may be seen in its runtime's own mount namespace: the first that is a directory of this host."""

MACHINE_ID: Final = "/etc/machine-id"
BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"

NO_LIMIT: Final = 1 << 62


def confined() -> Confined:
    """What confines every sandbox, in the form that the configuration takes; the filter is encoded already."""
    data = confinement()
    return Confined(
        tuple(f"CAP_{name}" for name in data.capabilities),
        tuple(f"/proc/{path}" for path in data.masked),
        tuple(f"/proc/{path}" for path in data.readonly),
        msgspec.Raw(msgspec.json.encode(oci_profile(policy(), machine()))),
    )


@dataclass(frozen=True, slots=True)
class Program:
    """An OCI runtime on this host. ``options`` come before its command."""

    name: str
    path: str
    options: tuple[str, ...]
    own_tasks: int
    """Its own processes and threads, which count in the sandbox's group while it lives."""
    own_boot_id: bool
    """It mounts a file below /proc/sys, as runc does not."""


OPTIONS: Final[dict[str, tuple[tuple[str, ...], int, bool]]] = {
    # Groups are ours: crun must not make any, and runc takes read-only ones for a reason to leave them alone.
    "crun": (("--cgroup-manager=disabled",), 4, True),
    "runc": (("--rootless=true",), 24, False),
}


def find_program(name: str | None) -> Program | None:
    """The named OCI runtime, or the first there is; root's directories of programs included."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))
    for candidate in (name,) if name else OPTIONS:
        found = shutil.which(candidate, path=path)
        if found:
            return Program(candidate, os.path.abspath(found), *OPTIONS[candidate])
    return None


def stage() -> str:
    """See ``STAGES``."""
    return next((place for place in STAGES if os.path.isdir(place) and not os.path.islink(place)), "/usr")


def shown_files(spec: SandboxSpec, shown_processors: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Source and target of what is shown read-only: the guest, the volumes, the host's names where they are needed.

    ``shown_processors`` (target, source): by which programs count processors; volumes of the caller win.
    """
    shown = [(str(guest_path()), GUEST), *((volume.source, volume.target) for volume in spec.volumes)]
    taken = {target for _, target in shown}
    shown += [(source, target) for target, source in shown_processors if target not in taken]
    if spec.network == "host":
        shown += name_files(taken)
    return shown


def identity(bundle: Path, program: Program, spec: SandboxSpec, template: Template) -> tuple[tuple[str, str], ...]:
    """(place inside, file of the bundle) of what only this sandbox has: its machine id, where the template has such a
    file, and its boot id, where the OCI runtime mounts anything below /proc/sys.
    """
    if not spec.machine_id or not spec.boot_id:
        return ()
    roots = (layer.source for layer in template.layers if layer.target == "/")
    shown = []
    if any(os.path.lexists(f"{root}{MACHINE_ID}") for root in roots):
        shown.append((MACHINE_ID, str(bundle / "machine-id")))
    if program.own_boot_id:
        shown.append((BOOT_ID, str(bundle / "boot_id")))
    return tuple(shown)


def make(
    bundle: Path, spec: SandboxSpec, mapped: IdMap | None, confined: Confined, shown: Sequence[tuple[str, str]]
) -> None:
    """Makes the bundle's directory; ``shown`` as in ``shown_files``. Raises ``OSError``; the caller removes it then."""
    bundle.mkdir(mode=0o711)
    bundle.chmod(0o711)
    for name in DIRECTORIES:
        (bundle / name).mkdir(mode=0o711)
        (bundle / name).chmod(0o711)
    for name, text in (("machine-id", spec.machine_id), ("boot_id", spec.boot_id)):
        if text:
            (bundle / name).write_text(f"{text}\n")
            (bundle / name).chmod(0o444)
    targets = [target for _, target in shown_files(spec, shown)]
    config: dict[str, Any] = bundle_config(spec, stage(), mapped, targets, confined)
    (bundle / "config.json").write_bytes(msgspec.json.encode(config))


class Placed(Protocol):
    """What the command needs to know of a sandbox."""

    spec: SandboxSpec
    template: Template
    directory: Path
    base: int
    namespace: int
    plan: Plan
    shown: tuple[tuple[str, str], ...]
    below: tuple[Below, ...]


def _parts(below: Sequence[Below], number: int) -> Iterator[str]:
    """The directories of that number in the layers below, as options."""
    mounts = 0
    for each in below:
        yield from ("below", f"{mounts}/{number}") if each.mount >= 0 else ("layer", f"{each.directory}/{number}")
        mounts += each.mount >= 0


def command(program: Program, sandbox: Placed, channel: int, status: int) -> list[str]:
    """What is run on the host: our preparation (guest/ocienter.h), and after it the OCI runtime in the foreground."""
    seen, spec, template = stage(), sandbox.spec, sandbox.template
    words = [str(guest_path()), "oci-enter", "channel", str(channel), "bundle", str(sandbox.directory), "stage", seen]
    words += ["ids", str(sandbox.base)]
    if sandbox.namespace >= 0:
        words += ["userns", str(sandbox.namespace)]
    words += ["size", str(spec.limits.disk or NO_LIMIT), "inodes", str(spec.limits.inodes or 0)]
    for group in sandbox.plan.directories:
        words += ["group", group]
    words += ["status", str(status)]
    for each in sandbox.below:
        if each.mount >= 0:
            words += ["frozen", f"{each.mount}:{each.base}"]
    for number, target in enumerate(targets(template)):
        words += ["target", target, *_parts(sandbox.below, number)]
        for layer in template.layers:
            if layer.target == target:
                words += ["layer", layer.source]
    for source, _ in shown_files(spec, sandbox.shown):
        words += ["volume", source]
    words += ["--", program.path, *program.options, "--root", f"{seen}/state", "run", "--no-new-keyring"]
    return [*words, "--preserve-fds", "1", "--bundle", seen, spec.id]
