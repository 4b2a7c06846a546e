"""One way to dirty a sandbox each; the next sandbox of the same template sees nothing of it."""

from __future__ import annotations

import pytest
from tests.clean.ways import FILES, OBJECTS, REFUSED, Way, is_there

from proofbox.model.fingerprint import Fingerprint, difference
from proofbox.model.outcome import Exited
from proofbox.model.template import Template
from proofbox.sandbox.host import Host

pytestmark = pytest.mark.anyio


async def check(way: Way, host: Host, template: Template, expected: Fingerprint) -> None:
    """It is done (or refused), it shows where it was done, and a direct look and the full fingerprint find it no more
    in the next sandbox.
    """
    if way.users and not host.probe.users:
        pytest.skip("sandboxes of this host have one user")
    async with host.open_sandbox(template) as box:
        assert not await is_there(box, way)
        done = await box.run(["dirty", "do", way.name])
        changed = {line.partition(":")[0] for line in difference(expected, await box.fingerprint(full=True))}
        if way.parts and way.only_at in ("", host.runtime_name):
            assert done.ok, done
            assert changed >= set(way.parts)
            assert await is_there(box, way)
        elif way.unseen:
            assert done.ok, done
            assert not changed, difference(expected, await box.fingerprint(full=True))
        else:
            assert done.outcome == Exited(2), done
            assert not changed, difference(expected, await box.fingerprint(full=True))
            assert not await is_there(box, way)
    async with host.open_sandbox(template) as box:
        assert difference(expected, await box.fingerprint(full=True)) == ()
        assert not await is_there(box, way)


@pytest.mark.parametrize("way", OBJECTS + REFUSED + FILES[::6], ids=lambda way: way.name)
async def test_the_next_sandbox_cannot_see(way: Way, host: Host, template: Template, expected: Fingerprint) -> None:
    """What a program can leave behind, or try to."""
    await check(way, host, template, expected)


@pytest.mark.parametrize("host", ["native"], indirect=True)
@pytest.mark.parametrize("way", [way for way in FILES if way not in FILES[::6]], ids=lambda way: way.name)
async def test_the_next_sandbox_cannot_see_the_file(
    way: Way, host: Host, template: Template, expected: Fingerprint
) -> None:
    """Files, wherever and however; at one runtime, as the other's writable layer is the same."""
    await check(way, host, template, expected)
