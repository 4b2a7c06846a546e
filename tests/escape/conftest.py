"""Where attacks are made from: every runtime here of level ``container`` and above, as the sandbox's root and as a
user of it.

One file an attack, in a folder for what is attacked. What several of them say to the sandbox is in ``attempts.py``.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conftest import open_host

from proofbox.host.seccomp.policy import machine, numbers
from proofbox.model.template import Template
from proofbox.runtimes.microvm.handle import MicrovmHandle
from proofbox.runtimes.microvm.handle import handle_of as as_machine
from proofbox.runtimes.microvm.vmm import Vmm
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.commands import Command
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


NOTHING: Mapping[str, str] = {}


class Attacker:
    """A program in the shared sandbox that goes on from test to test: starting Python is most of what an attempt costs.
    One that does not survive is followed by another.
    """

    def __init__(self, box: Sandbox, user: str | None) -> None:
        self._box = box
        self._user = user
        self._running: Command | None = None

    async def told(self, request: str) -> str:
        """What it answers."""
        if self._running is None or self._running.over:
            self._running = await self._box.start(program(), user=self._user, stdin=True, keep=None)
        said = {1: b"", 2: b""}
        with anyio.move_on_after(SECONDS):
            await self._running.send(request)
            async for pipe, data in self._running.output():
                said[pipe] += data
                if said[1].endswith(b"\n"):
                    return said[1].decode()
        raise AssertionError(f"no answer: {said}, {(await self._running.kill()).outcome}")

    async def end(self) -> None:
        """Leaves nothing of it."""
        if self._running is not None:
            await self._running.kill()


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
    attacker: Attacker

    @property
    def own_kernel(self) -> bool:
        """What is tried meets a kernel that may allow it, with nothing of the host in it. In a machine, too, the kernel
        is the sandbox's own, but what stands there is the same sandbox as at ``native``.
        """
        return self.host.probe.level == "user-kernel"

    async def expect(
        self, attempts: Mapping[str, str], *allowed: str, gvisor: Mapping[str, str] = NOTHING, **more: int
    ) -> None:
        """Makes them all, and names those that did not end in one of these ways.

        gVisor's kernel may refuse with another error, and may let those named in ``gvisor`` end as they say: they reach
        what is the sandbox's own there.
        """
        told = await self.outcomes(attempts, None, **more)
        assert self.secret not in json.dumps(told)
        wrong = {name: outcome for name, outcome in told.items() if outcome not in allowed}
        if self.own_kernel:
            wrong = {name: outcome for name, outcome in wrong.items() if not ERROR.fullmatch(outcome)}
            wrong = {name: outcome for name, outcome in wrong.items() if outcome != gvisor.get(name)}
        assert wrong == {}

    async def outcomes(self, attempts: Mapping[str, str], box: Sandbox | None = None, **more: Any) -> dict[str, str]:
        """How each ended, as ``inside.py`` tells it: in another sandbox than the shared one, by a program of its own.
        ``more`` is given to them besides what is always given.
        """
        if box is None:
            answer = await self.attacker.told(self.request(attempts, **more))
        else:
            result = await self.run(attempts, box, **more)
            assert result.ok, result
            answer = result.stdout
        told: dict[str, str] = json.loads(answer)
        return told

    def request(self, attempts: Mapping[str, str], **more: Any) -> str:
        """The line with them that ``inside.py`` reads."""
        return json.dumps({"given": {**self.given, **more}, "attempts": dict(attempts)}) + "\n"

    async def run(self, attempts: Mapping[str, str], box: Sandbox, **more: Any) -> CommandResult:
        """A program that makes them and ends, as a command."""
        return await box.run(program(), stdin=self.request(attempts, **more), user=self.user, timeout=SECONDS)

    def open_box(self, **asked: Any) -> AbstractAsyncContextManager[Sandbox]:
        """Another sandbox of the runtime, for what changes or fills it."""
        return self.host.open_sandbox(**{"template": self.template, **asked})


AT_MACHINES = pytest.mark.parametrize("host", ["microvm"], indirect=True, scope="package")
"""For attacks on what only a machine has."""
WHOEVER = pytest.mark.parametrize("inside", [None], ids=["root"], indirect=True, scope="package")
"""For what does not depend on who tries it."""
MACHINES_TOO = pytest.mark.always(*(["microvm"] if os.geteuid() == 0 else []))
"""For what is tried everywhere, and would end or change a machine."""
HOSTS_KERNEL = pytest.mark.hosts_kernel
"""For what is found in detail (owners of devices, lines of /proc) and is otherwise in gVisor's kernel."""


def handle_of(box: Sandbox) -> MicrovmHandle:
    """What the host holds of a sandbox in a machine."""
    assert box._life.handle is not None
    return as_machine(box._life.handle)


def machine_of(box: Sandbox) -> Vmm:
    """Its machine, as seen from the host."""
    machine = handle_of(box).machine
    assert machine is not None
    return machine


ALWAYS: dict[str, tuple[str, ...]] = {
    "runsc": ("files", "guest", "neighbours", "network", "processes"),
    "microvm": ("guest", "machine") if os.geteuid() == 0 else (),
}
"""What root tries there in every run, beside files that say so themselves (``always``); the rest is ``slow``. In a
machine nothing depends on who started it but QEMU's process.
"""
HOST_ALONE = ("protocol",)
"""Folders of what is said to the host itself, which hears it alike at all: but at ``native`` they are ``slow``."""
HERE = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """crun and runc set up one bundle: what a user tries at crun is left out at runc, but not what root tries. At runsc
    and microvm, which are slow, some of what root tries is always tried.

    They are put in the order of runtimes and users over all folders. pytest puts together what shares a fixture within
    each folder only, and would open the sandbox of a runtime anew for each of them.
    """
    attacks = [item for item in items if item.path.is_relative_to(HERE)]
    for item in attacks:
        runtime, user = _where(item)
        if (runtime, user) == ("runc", "nobody") or (runtime != "native" and _folder(item) in HOST_ALONE):
            item.add_marker("slow")
        if runtime in ALWAYS and (user is not None or not _always(item, runtime)):
            item.add_marker("slow")
        if runtime == "runsc" and item.get_closest_marker("hosts_kernel"):
            item.add_marker(pytest.mark.skip(reason="it is about how the host's kernel answers"))
    yield
    left = [item for item in items if item.path.is_relative_to(HERE)]
    if left:
        first = items.index(left[0])
        items[:] = [item for item in items if not item.path.is_relative_to(HERE)]
        items[first:first] = sorted(left, key=lambda item: (RUNTIMES.index(_where(item)[0]), _where(item)[1] or ""))


def _folder(item: pytest.Item) -> str:
    """What it attacks."""
    return item.path.relative_to(HERE).parts[0]


def _always(item: pytest.Item, runtime: str) -> bool:
    """Whether it is tried there in every run."""
    return _folder(item) in ALWAYS[runtime] or any(runtime in mark.args for mark in item.iter_markers("always"))


def _where(item: pytest.Item) -> tuple[str, str | None]:
    """At which runtime it is tried, and as whom."""
    assert isinstance(item, pytest.Function)
    runtime, user = item.callspec.params["host"], item.callspec.params.get("inside")
    assert isinstance(runtime, str)
    assert isinstance(user, str | None)
    return runtime, user


SECONDS = 60
"""In which the attempts of a test are made."""
ERROR = re.compile(r"E[A-Z0-9]+|signal \d+")
"""How an attempt ends that was refused."""


def program() -> list[str]:
    """The command line of ``inside.py``, which is not a file there."""
    return ["python3", "-I", "-S", "-c", HERE.joinpath("inside.py").read_text(), json.dumps(numbers(machine()))]


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
async def inside(
    request: pytest.FixtureRequest, host: Host, box: Sandbox, template: Template | str, witness: Witness
) -> AsyncIterator[Inside]:
    """A foothold in it."""
    attacker = Attacker(box, request.param)
    yield Inside(host, box, request.param, witness.given(), template, witness.secret, attacker)
    await attacker.end()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory of the host that a volume can be of, with a file in it that everybody may write."""
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)
    made = tmp_path / "shared"
    made.mkdir()
    (made / "file").write_text("shared")
    (made / "file").chmod(0o666)
    return made
