"""Fixtures of the sandbox layer's tests: the scripted runtime, and the process runtime with the real guest."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator

import pytest

from proofbox.errors import Refused
from proofbox.model.template import Template
from proofbox.runtime import registry
from proofbox.runtimes.fake import FakeRuntime
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

PLAIN = Template(
    digest="sha256:" + "0" * 64, name="plain", layers=(), env={"PATH": "/usr/bin:/bin", "FROM": "template"}, cwd="/"
)
"""Enough for runtimes that do not mount it."""


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of these tests; one test tries the other one."""
    return "asyncio"


@pytest.fixture
def fake() -> FakeRuntime:
    """The scripted runtime of this process, without a script."""
    runtime = registry.runtime("fake")
    assert isinstance(runtime, FakeRuntime)
    runtime.scripts = FakeRuntime().scripts
    runtime.programs.clear()
    return runtime


@pytest.fixture
async def fake_host(fake: FakeRuntime) -> AsyncIterator[Host]:
    """This machine with the scripted runtime; nothing may be left in it."""
    host = await Host.local("fake", allow_unisolated=True)
    yield host
    await host.aclose()
    assert fake.live == {}


@pytest.fixture
async def process_host() -> AsyncIterator[Host]:
    """This machine with the process runtime."""
    try:
        host = await Host.local("process", allow_unisolated=True)
    except Refused as refused:
        pytest.skip(str(refused))
    yield host
    await host.aclose()


@pytest.fixture
async def box(process_host: Host) -> AsyncIterator[Sandbox]:
    """A real guest without isolation."""
    async with process_host.open_sandbox(PLAIN) as made:
        yield made


@pytest.fixture
def state(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Live state in a directory of the test's own."""
    monkeypatch.setenv("PROOFBOX_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


async def alive(word: str) -> bool:
    """A process of this machine sleeps so many seconds (zombies have no arguments)."""
    wanted = f"sleep\0{word}\0".encode()
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cmdline").read_bytes() == wanted:
                return True
        except OSError:
            continue  # it has ended
    return False
