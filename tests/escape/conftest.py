"""Where attacks are made from: every runtime of level ``container`` here, as the sandbox's root and as a user of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import open_host

from proofbox.host.seccomp.policy import machine, numbers
from proofbox.model.template import Template
from proofbox.runtimes.microvm.handle import MicrovmHandle
from proofbox.runtimes.microvm.handle import handle_of as as_machine
from proofbox.runtimes.microvm.vmm import Vmm
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host
from proofbox.sandbox.result import CommandResult
from proofbox.templates.store import open_store
from proofbox.testing.small import small_template

RUNTIMES = ("native", "crun", "runc", "runsc", "microvm")
USERS = (None, "nobody") if os.geteuid() == 0 else (None,)
"""With a single id inside there is no other user than root."""
SETTINGS = (
    "kernel/hostname",
    "kernel/domainname",
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/panic",
    "kernel/sysrq",
    "kernel/randomize_va_space",
    "kernel/perf_event_paranoid",
    "kernel/random/boot_id",
    "vm/overcommit_memory",
    "vm/swappiness",
    "fs/suid_dumpable",
)


class Witness:
    """Things of this host that an attack would like to reach."""

    def __init__(self, directory: Path) -> None:
        self.secret = uuid.uuid4().hex
        self.directory = directory
        self.file = directory / "file"
        self.file.write_text(self.secret)
        self.file.chmod(0o666)
        self.process = subprocess.Popen(["sleep", "3600"], env={"SECRET": self.secret})
        self.name = f"proofbox-escape-{uuid.uuid4().hex}"
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract.bind("\0" + self.name)
        self.abstract.listen()
        self.path = socket.socket(socket.AF_UNIX)
        self.path.bind(str(directory / "socket"))
        self.path.listen()
        self.tcp = socket.create_server(("127.0.0.1", 0))
        for each in (self.abstract, self.path, self.tcp):
            each.setblocking(False)

    def given(self) -> dict[str, Any]:
        """What attackers are told, so that they need not search."""
        return {
            "file": str(self.file),
            "pid": self.process.pid,
            "client": os.getpid(),
            "abstract": self.name,
            "socket": str(self.directory / "socket"),
            "port": self.tcp.getsockname()[1],
            "device": self.file.stat().st_dev,
        }

    def state(self) -> dict[str, object]:
        """All that must be the same afterwards."""
        found = self.file.stat()
        state: dict[str, object] = {
            "file": (self.file.read_text(), found.st_mode, found.st_uid, found.st_nlink, os.listxattr(self.file)),
            "directory": sorted(path.name for path in self.directory.iterdir()),
            "process": self.process.poll(),
            "nice": os.getpriority(os.PRIO_PROCESS, self.process.pid),
            "processors": os.sched_getaffinity(self.process.pid),
            "devices": [os.stat(f"/dev/{name}").st_mode for name in ("null", "zero", "full", "urandom", "tty")],
            "called": [_called(each) for each in (self.abstract, self.path, self.tcp)],
        }
        for name in SETTINGS:
            setting = Path("/proc/sys", name)
            state[name] = setting.read_text() if os.access(setting, os.R_OK) else None
        return state

    def close(self) -> None:
        """Leaves nothing."""
        self.process.kill()
        self.process.wait()
        for each in (self.abstract, self.path, self.tcp):
            each.close()


def _called(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@dataclass
class Inside:
    """A foothold in a sandbox: programs run there as ``user`` (None: its root)."""

    host: Host
    box: Sandbox
    user: str | None
    given: dict[str, Any]
    template: Template | str
    """Of the runtime's sandboxes."""
    secret: str
    """What the witnesses keep."""

    @property
    def own_kernel(self) -> bool:
        """What is tried meets a kernel that may allow it, with nothing of the host in it. In a machine, too, the kernel
        is the sandbox's own, but what stands there is the same sandbox as at ``native``.
        """
        return self.host.probe.level == "user-kernel"

    async def expect(self, attempts: Mapping[str, str], *allowed: str, **more: int) -> None:
        """Makes them all; where they meet the host's kernel each has to end in one of these ways. Names those that did
        not.
        """
        told = await self.outcomes(attempts, None, **more)
        if self.own_kernel:  # whatever it answers: this host is looked at after each test
            assert self.secret not in json.dumps(told)
            return
        assert {name: outcome for name, outcome in told.items() if outcome not in allowed} == {}

    async def outcomes(self, attempts: Mapping[str, str], box: Sandbox | None = None, **more: Any) -> dict[str, str]:
        """How each ended, as ``inside.py`` tells it. ``more`` is given to them besides what is always given."""
        result = await self.run(attempts, box or self.box, **more)
        assert result.ok, result
        told: dict[str, str] = json.loads(result.stdout)
        return told

    async def run(self, attempts: Mapping[str, str], box: Sandbox, **more: Any) -> CommandResult:
        """The program that makes them, as a command."""
        given = {**self.given, "numbers": numbers(machine()), **more}
        words = ["python3", "-I", "-S", "-c", PROGRAM, json.dumps(given), json.dumps(dict(attempts))]
        return await box.run(words, user=self.user, timeout=60)

    def open_box(self, **asked: Any) -> AbstractAsyncContextManager[Sandbox]:
        """Another sandbox of the runtime, for what changes or fills it."""
        return self.host.open_sandbox(**{"template": self.template, **asked})


AT_MACHINES = pytest.mark.parametrize("host", ["microvm"], indirect=True, scope="package")
"""For attacks on what only a machine has."""


def handle_of(box: Sandbox) -> MicrovmHandle:
    """What the host holds of a sandbox in a machine."""
    assert box._life.handle is not None
    return as_machine(box._life.handle)


def machine_of(box: Sandbox) -> Vmm:
    """Its machine, as seen from the host."""
    machine = handle_of(box).machine
    assert machine is not None
    return machine


OF_THE_HOSTS_KERNEL = frozenset(
    {
        "test_no_device_of_the_host_is_given_to_the_sandbox",
        "test_memory_counts_wherever_it_is_hidden",
        "test_a_command_starts_with_its_own_descriptors",
        "test_the_call_with_hidden_flags_does_not_exist",
        "test_set_user_id_programs_of_the_template_have_no_effect",
        "test_a_link_decides_where_inside_a_volume_is_seen_and_never_outside",
        "test_a_socket_in_a_volume_is_open_to_whom_its_mode_lets",
        "test_denied_calls_fail_with_their_error",
        "test_a_call_that_nobody_named_does_not_exist",
        "test_terminals_take_no_orders",
        "test_a_command_at_a_terminal_types_for_nobody",
    }
)
"""What these find in detail (numbers of errors, owners of devices, lines of /proc) is otherwise in gVisor's kernel."""
ALWAYS: dict[object, tuple[str, ...]] = {
    "runsc": ("guest_process", "host_files", "host_processes", "neighbours", "sockets", "trees"),
    "microvm": ("guest_process", "machine_") if os.geteuid() == 0 else ("machine_process",),
}
"""What root tries there in every run, since most of the time goes into starting programs; the rest is ``slow``. In a
machine nothing depends on who started it but QEMU's process.
"""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """crun and runc set up one bundle: what a user tries at crun is left out at runc, but not what root tries. At runsc
    and microvm, which are slow, some of what root tries is always tried.
    """
    for item in items:
        found = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if (found.get("host"), found.get("inside")) == ("runc", "nobody"):
            item.add_marker("slow")
        subject = item.path.stem.removeprefix("test_")
        always = ALWAYS.get(found.get("host"))
        if always is not None and (not subject.startswith(always) or found.get("inside") == "nobody"):
            item.add_marker("slow")
        if found.get("host") == "runsc" and getattr(item, "originalname", "") in OF_THE_HOSTS_KERNEL:
            item.add_marker(pytest.mark.skip(reason="it is about how the host's kernel answers"))


PROGRAM = Path(__file__).with_name("inside.py").read_text()


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    """Attacks do not depend on the event loop."""
    return "asyncio"


@pytest.fixture(scope="package")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """See ``Witness``."""
    made = Witness(tmp_path_factory.mktemp("witness"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def unchanged(witness: Witness) -> Iterator[None]:
    """Whatever was tried, this host is what it was before."""
    before = witness.state()
    yield
    assert witness.state() == before


@pytest.fixture(scope="package", params=RUNTIMES)
async def host(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Host]:
    """This machine with that runtime."""
    async with open_host(request.param) as found:
        yield found


@pytest.fixture(scope="package")
def template(host: Host) -> Template | str:
    """An image of all of the host's /usr would take a machine minutes to make."""
    return small_template(open_store()) if host.runtime_name == "microvm" else "host"


@pytest.fixture(scope="package")
async def box(host: Host, template: Template | str) -> AsyncIterator[Sandbox]:
    """One sandbox for all attempts that leave nothing in it."""
    async with host.open_sandbox(template) as box:
        yield box


@pytest.fixture(scope="package", params=USERS, ids=lambda user: user or "root")
def inside(
    request: pytest.FixtureRequest, host: Host, box: Sandbox, template: Template | str, witness: Witness
) -> Inside:
    """A foothold in it."""
    return Inside(host, box, request.param, witness.given(), template, witness.secret)
