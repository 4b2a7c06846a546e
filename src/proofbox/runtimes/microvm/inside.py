"""What the launcher in a virtual machine is asked for: the sandbox of the spec, with the machine's own paths."""

from __future__ import annotations

import os
from math import ceil
from typing import Final

import msgspec

from proofbox.host.cgroup import PROCESS_RESERVE, Plan
from proofbox.host.confinement import confinement
from proofbox.host.idmap import Ids
from proofbox.host.seccomp.bpf import compile_filter
from proofbox.host.seccomp.policy import machine, policy
from proofbox.model.limits import MIB, Limits
from proofbox.model.spec import SandboxSpec, Volume
from proofbox.model.template import Template
from proofbox.runtime.messages import encode_launch, encode_setup
from proofbox.runtimes.microvm.control import encode_machine
from proofbox.runtimes.microvm.qemu import Accelerator

GROUP: Final = "/cgroup/sandbox"
"""As guest/vmusage.h has it."""
INIT: Final = 1
"""The process in the machine that the launcher belongs to."""
PROCESSORS: Final = "/sys/devices/system/cpu"
MEMORY: Final = 1024 * MIB
"""Of a machine whose sandbox has no limit on memory: a machine cannot be without one."""
RESERVE: Final = 112 * MIB
"""Memory of a machine over the sandbox's limit, for its kernel and init."""
PAGES: Final = 50
"""One part in so many of the limit comes on top, for what a kernel keeps for each page."""


def guest_memory(limits: Limits) -> int:
    """Bytes of the machine's memory."""
    memory = MEMORY if limits.memory is None else limits.memory
    return memory + RESERVE + memory // PAGES


def guest_processors(limits: Limits, accelerator: Accelerator) -> int:
    """How many the machine has: what its limit gives it, else all that we may use, or one where it is emulated."""
    here = len(os.sched_getaffinity(0))
    if limits.cpus is None:
        return here if accelerator == "kvm" else 1
    return max(1, min(here, ceil(limits.cpus)))


def launch_records(spec: SandboxSpec, template: Template, *, root_overlays: bool) -> tuple[bytes, bytes, bytes]:
    """What its init is sent. ``root_overlays``: overlays are mounted with the rights of the machine's root."""
    program = compile_filter(policy(), machine())
    setup = encode_setup(INIT, Ids(True, 0, 0), confinement(), program, (), root_overlays=root_overlays)
    layers = tuple(
        msgspec.structs.replace(layer, source=f"/image/0/{number}") for number, layer in enumerate(template.layers)
    )
    volumes = tuple(Volume(f"/image/1/{number}", each.target) for number, each in enumerate(spec.volumes))
    shown = ((PROCESSORS, PROCESSORS),) if spec.limits.cpus is not None else ()
    inside = msgspec.structs.replace(spec, volumes=volumes)
    launch = encode_launch(
        inside, msgspec.structs.replace(template, layers=layers), _plan(spec.limits), processes=None, shown=shown
    )
    return encode_machine(2 if volumes else 1), setup, launch


def _plan(limits: Limits) -> Plan:
    """Its control group in the machine."""
    values = [(f"{GROUP}/memory.max", str(MEMORY if limits.memory is None else limits.memory))]
    if limits.processes is not None:
        values.append((f"{GROUP}/pids.max", str(limits.processes + PROCESS_RESERVE)))
    values.append((f"{GROUP}/cgroup.procs", ""))
    return Plan((GROUP,), tuple(values))


def command_line(accelerator: Accelerator) -> str:
    """The kernel's. A failure of its own ends the machine at once, with its last words on the console."""
    words = ["console=ttyS0", "quiet", "panic=-1", "reboot=t"]
    if accelerator == "tcg":
        words.append("tsc_early_khz=2600000")  # its calibration hangs at random where the clock is emulated
    return " ".join(words)
