"""A native sandbox driven by bare frames: what is tested here is the runtime, not the layers above it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conftest import holds

from proofbox.errors import Refused
from proofbox.host.owner import Owner
from proofbox.model.limits import Limits
from proofbox.model.spec import SandboxSpec
from proofbox.model.template import Layer, Template
from proofbox.runtimes.native import NativeRuntime
from proofbox.runtimes.native.handle import NativeHandle
from proofbox.testing.needs import skip_unless_required
from proofbox.wire import frames
from proofbox.wire.guest import END_LAYOUT, HOST_HELLO_LAYOUT, RUN_LAYOUT, HostHello, Run

ENV = (b"PATH=/usr/local/bin:/usr/bin:/bin", b"LC_ALL=C")


class Box:
    """One sandbox and the stream to its guest."""

    def __init__(self, runtime: NativeRuntime, handle: NativeHandle, channel: socket.socket) -> None:
        self.runtime = runtime
        self.handle = handle
        self.channel = channel
        self._decoder = frames.FrameDecoder("guest")
        self._stream = 0

    async def run(self, text: str, *, user: bytes | None = None) -> tuple[int, str]:
        """Exit code (128 + n for a signal) and output of a shell text."""
        self._stream += 1
        run = Run(kind=1, args=(text.encode(),), env=ENV, cwd=b"/", user=user, merge=True, window=1 << 24)
        await self._send(frames.encode_message(frames.RUN, self._stream, RUN_LAYOUT.encode(run)))
        output = b""
        while True:
            for frame in await self._receive():
                if frame.type == frames.GUEST_DATA:
                    output += frame.payload
                elif frame.type == frames.END:
                    end = END_LAYOUT.decode(frame.payload)
                    return end.code + (128 if end.how == 1 else 0), output.decode("utf-8", "replace")
                elif frame.type != frames.STARTED:
                    raise AssertionError(frame)

    async def greet(self) -> None:
        """The first exchange: the guest is there."""
        await self._send(frames.encode_frame(frames.HELLO, payload=HOST_HELLO_LAYOUT.encode(HostHello())))
        assert [frame.type for frame in await self._receive()] == [frames.GUEST_HELLO]

    async def _send(self, data: bytes) -> None:
        await anyio.wait_writable(self.channel)
        self.channel.sendall(data)

    async def _receive(self) -> list[frames.Frame]:
        while True:
            await anyio.wait_readable(self.channel)
            data = self.channel.recv(1 << 20)
            assert data, "the guest has gone"
            if found := self._decoder.feed(data):
                return found


def gone(*pids: int) -> bool:
    """Whether none of these processes lives; a zombie that the host's init has yet to reap does not."""
    return all(state_of(pid) in ("", "Z", "X") for pid in pids)


def state_of(pid: int) -> str:
    """Its letter in /proc; empty if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def make_template(root: Path) -> Template:
    """A root with nothing but directories, links and two users, and the host's /usr."""
    for name in ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/tmp:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nada:x:1000:\n")
    return Template(digest="sha256:0", name="t", layers=(Layer("/", str(root)), Layer("/usr", "/usr")), env={})


@pytest.fixture
def anyio_backend() -> str:
    """The backend that must work; the conformance suite runs on the other one too."""
    return "asyncio"


@pytest.fixture
def template(tmp_path: Path) -> Template:
    """See ``make_template``."""
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)  # one of them may be /tmp
    return make_template(tmp_path / "root")


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NativeRuntime]:
    """A runtime with an owner of its own. Its directory must be empty at the end."""
    monkeypatch.setenv("PROOFBOX_STATE", str(tmp_path / "state"))
    owner = Owner.register()
    made = NativeRuntime(owner)
    try:
        probe = await made.probe()
        if not probe.usable:
            skip_unless_required("native", Refused("runtime native", tuple(map(str, probe.missing))))
        yield made
    finally:
        await made.close()
        owner.forget()
    assert not owner.dir.exists()


OpenBox = Callable[..., AbstractAsyncContextManager[Box]]


@pytest.fixture
def open_box(runtime: NativeRuntime, template: Template) -> OpenBox:
    """Opens a sandbox: ``name`` (its id), ``limits``, ``template``, and other fields of the spec."""

    @asynccontextmanager
    async def opened(
        *, name: str = "box", limits: Limits | None = None, template: Template = template, **spec: Any
    ) -> AsyncIterator[Box]:
        asked = limits or Limits(disk=16 << 20, inodes=2000)
        handle = await runtime.create(SandboxSpec(id=name, template="t", limits=asked, **spec), template)
        try:
            await runtime.start(handle)
            with await runtime.connect(handle) as channel:
                box = Box(runtime, handle, channel)
                await box.greet()
                yield box
        finally:
            with anyio.CancelScope(shield=True):
                await runtime.destroy(handle)

    return opened


Eventually = Callable[[Callable[[], bool]], Awaitable[bool]]


@pytest.fixture
def eventually() -> Eventually:
    """Whether something becomes true, however busy the host is."""
    return holds
