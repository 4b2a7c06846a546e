"""One sandbox's bundle on the host, and the command that runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from proofbox.host.cgroup import Plan
from proofbox.host.confinement import confinement
from proofbox.host.idmap import IdMap
from proofbox.host.names import name_files
from proofbox.host.seccomp.oci import oci_profile
from proofbox.host.seccomp.policy import machine, policy
from proofbox.host.stage import stage
from proofbox.kit.binary import guest_path
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Template, targets
from proofbox.runtime.contract import Below
from proofbox.runtime.messages import INODE_RESERVE
from proofbox.runtimes.oci.config import GUEST, TMP, Confined, bundle_config
from proofbox.runtimes.oci.programs import Program

PREFIX: Final = "oci-"
DIRECTORIES: Final = ("rootfs", "layer", "lower", "volume", "state")


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
    if program.make.own_boot_id:
        shown.append((BOOT_ID, str(bundle / "boot_id")))
    return tuple(shown)


def make(
    bundle: Path,
    spec: SandboxSpec,
    mapped: IdMap | None,
    confined: Confined,
    shown: Sequence[tuple[str, str]],
    program: Program,
    *,
    proof: bool = False,
) -> None:
    """Makes the bundle's directory for that program; ``shown`` as in ``shown_files``, ``proof`` as for its config.

    Raises ``OSError``; the caller removes it then.
    """
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
    config: dict[str, Any] = bundle_config(spec, stage(), mapped, targets, confined, program.make, proof=proof)
    (bundle / "config.json").write_bytes(msgspec.json.encode(config))


class Placed(Protocol):
    """What the command needs to know of a sandbox."""

    spec: SandboxSpec
    template: Template
    program: Program
    directory: Path
    base: int
    namespace: int
    plan: Plan
    shown: tuple[tuple[str, str], ...]
    below: tuple[Below, ...]
    image: str


def _parts(below: Sequence[Below], number: int) -> Iterator[str]:
    """The directories of that number in the layers below, as options."""
    mounts = 0
    for each in below:
        yield from ("below", f"{mounts}/{number}") if each.mount >= 0 else ("layer", f"{each.directory}/{number}")
        mounts += each.mount >= 0


def command(sandbox: Placed, channel: int, status: int) -> list[str]:
    """What is run on the host: our preparation (guest/ocienter.h), and after it the OCI runtime."""
    seen, spec, template, make = stage(), sandbox.spec, sandbox.template, sandbox.program.make
    words = [str(guest_path()), "oci-enter", "channel", str(channel), "bundle", str(sandbox.directory), "stage", seen]
    words += ["at", str(make.channel), "ids", str(sandbox.base)]
    if make.own_kernel:
        words += ["directory", TMP]
    if make.detaches:
        words += ["detaches", "yes"]
    if sandbox.namespace >= 0:
        words += ["userns", str(sandbox.namespace)]
    inodes = spec.limits.inodes and spec.limits.inodes + INODE_RESERVE + len(sandbox.below)
    words += ["size", str(spec.limits.disk or NO_LIMIT), "inodes", str(inodes or 0)]
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
    return [*words, "--", *sandbox.program.command(spec.network, seen, spec.id, sandbox.image)]
