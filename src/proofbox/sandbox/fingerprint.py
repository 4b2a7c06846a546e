"""Takes the fingerprint of a live sandbox. docs/clean-start.md says what each part holds and who tells it."""

from __future__ import annotations

import os
from typing import Final

import anyio.to_thread

from proofbox.errors import OperationFailed
from proofbox.host import looks
from proofbox.model.fingerprint import Fingerprint, fingerprint_of
from proofbox.sandbox.fileops import FileOperations
from proofbox.sandbox.lifecycle import Life
from proofbox.sandbox.setting import Setting
from proofbox.wire import fingerprint as wire
from proofbox.wire import frames, guest
from proofbox.wire.frames import WireError

MOST: Final = 256 << 20
"""Bytes of lines that are taken from a guest."""
SECONDS: Final = 120.0

OWN_FILES: Final = ("/etc/machine-id", "/sys")
"""What is shown to one sandbox and not to another of the same template, on purpose: never looked into."""


async def take(operations: FileOperations, setting: Setting, *, full: bool) -> Fingerprint:
    """The fingerprint now. Raises ``OperationFailed``, ``SandboxLost``; cancelled, nothing is left of it."""
    life = operations.life
    spec = life.spec
    own_ids = setting.users and os.geteuid() == 0
    flags = (wire.OWN_IDS if own_ids else 0) | (wire.FULL if full else 0)
    skip = {*OWN_FILES, *(volume.target for volume in spec.volumes)}
    run = guest.Run(
        kind=guest.FILE,
        cwd=b"/",
        deadline_ms=int(SECONDS * 1000),
        keep=MOST,
        file_op=wire.FINGERPRINT,
        path=b"/",
        args=tuple(path.encode("utf-8", "surrogateescape") for path in sorted(skip)),
        offset=life.asked_ns,
        flags=flags,
    )
    stream = await operations.do("fingerprint", "/", run)
    if stream.end is not None and stream.end.produced[0] > MOST:
        raise OperationFailed(f"sandbox {spec.id}: its fingerprint has more than {MOST} bytes", "fingerprint")
    raw = bytes(stream.incoming[frames.STDOUT].buffer)
    try:
        if full:
            return await anyio.to_thread.run_sync(_seen_from_both_sides, raw, life, setting)
        return fingerprint_of(wire.decode_lines(raw), full=False)
    except WireError as error:
        raise operations.violation(error) from error


def _seen_from_both_sides(raw: bytes, life: Life, setting: Setting) -> Fingerprint:
    """What the kernel tells the host counts more than what the guest tells, where it is the sandbox's kernel too."""
    lines = wire.decode_lines(raw)
    seen = life.observe() if life.shares_kernel else None
    pids = seen[0] if seen is not None else ()
    first = looks.first_process(pids)
    mounts = looks.mount_lines(first) if first is not None else None
    processes = looks.process_lines(pids) if first is not None else None
    own = [line.replace(life.spec.id, "ID") for line in lines["mounts"]]  # gVisor calls its control groups so
    lines["mounts"] = mounts if mounts is not None else own
    lines["processes"] = processes if processes is not None else lines["processes"]
    lines["environment"] += _given(setting)
    lines["limits"] += _limits(life)
    return fingerprint_of(lines, full=True)


def _given(setting: Setting) -> list[str]:
    """What every command gets from this side."""
    told = [f"env {field.decode('utf-8', 'surrogateescape')}" for field in setting.fields]
    return [*told, f"cwd {setting.cwd.decode('utf-8', 'surrogateescape')}", f"user {setting.user.decode()}"]


def _limits(life: Life) -> list[str]:
    limits = life.spec.limits
    return [
        f"{kind}={value}" for kind in type(limits).__struct_fields__ if (value := getattr(limits, kind)) is not None
    ]
