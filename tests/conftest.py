"""Fixtures that more than one folder of tests uses. A folder that needs others of these names has its own."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from proofbox.errors import Refused
from proofbox.host import unclean
from proofbox.model.fingerprint import difference
from proofbox.model.template import Template
from proofbox.sandbox.host import Host
from proofbox.testing.needs import skip_unless_required
from proofbox.verify.function import FunctionVerifier


def pytest_configure() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and it would stay so in all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@asynccontextmanager
async def open_host(name: str) -> AsyncIterator[Host]:
    """This machine with that runtime; the test is skipped with the reason where it does not run and need not."""
    try:
        found = await Host.local(name)
    except Refused as refused:
        skip_unless_required(name, refused)
    yield found
    await found.aclose()


@asynccontextmanager
async def best_host() -> AsyncIterator[Host]:
    """Real isolation where this host has it; else the process runtime, which shows what does not need isolation."""
    try:
        host = await Host.local()
    except Refused:
        host = await Host.local("process", "none", allow_unisolated=True)
    yield host
    await host.aclose()


@pytest.fixture
def own_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where unclean starts are put on record by this test, and not where the user's own are."""
    monkeypatch.setattr(unclean, "data_home", lambda: tmp_path / "record")
    return tmp_path / "record"


@pytest.fixture(scope="module")
async def host(anyio_backend: str) -> AsyncIterator[Host]:
    """As ``best_host``."""
    async with best_host() as found:
        yield found


@pytest.fixture(scope="module")
async def verifier(host: Host) -> AsyncIterator[FunctionVerifier]:
    """One for all tests of a file, as a run has one: what one candidate does to it would show in the next."""
    async with FunctionVerifier(host) as verifier:
        yield verifier


async def holds(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true within some seconds."""
    for _ in range(6000):
        if condition():
            return True
        await anyio.sleep(0.005)
    return False


async def sees_what_is_inside(host: Host, template: Template) -> None:
    """Full fingerprints of two that start alike are the same, and what was left running shows: nothing of the host."""
    async with host.open_sandbox(template) as one, host.open_sandbox(template) as other:
        first, second = await one.fingerprint(full=True), await other.fingerprint(full=True)
        assert difference(first, second) == ()
        assert first.part("processes").lines == ()
        runs = 'until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.02; done'
        await one.run(f"setsid sleep 777 > /dev/null 2>&1 < /dev/null & {runs}", timeout=60)
        assert (await one.fingerprint(full=True)).part("processes").lines == ("(sleep) sleep 777 ",)
