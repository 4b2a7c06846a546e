"""The runtimes that the suite runs on: each module names one in ``RUNTIME``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from proofbox.errors import Refused
from proofbox.sandbox.host import Host
from proofbox.testing.needs import skip_unless_required

ONLY_THERE = ("memory_forks",)
"""Modules of checks that other runtimes skip."""
SHARED = ("commands", "files", "isolation", "output")
"""Groups of checks in which most share one sandbox."""
OWN = "open_box"
"""The fixture of those that open sandboxes of their own."""
CHOSEN = ("test_passing_the_memory_limit_is_named", "test_the_disk_limit_says_no_space_left[/tmp]")
LONG = ("test_a_gigabyte_of_output_is_counted_not_kept", "test_a_file_goes_in_and_out_whole[52428800]")
"""Where every instruction is emulated."""
AT_RUNSC = ("isolation", "lifecycle", *ONLY_THERE, *(("forks", "limits", "background") if os.geteuid() == 0 else ()))
"""Modules of checks that are always made there: those in which a kernel of the sandbox's own could differ most."""
LONG_AT_RUNSC = ("test_places_of_the_host_are_invisible", "test_many_sandboxes_live_at_once")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """At ``microvm``, where each sandbox is booted, the default run makes few; and as root alone: who starts a machine
    makes no difference inside. At ``runsc`` what is in ``AT_RUNSC``.
    """
    for item in items:
        if getattr(getattr(item, "module", None), "RUNTIME", "") != "microvm":
            continue
        group = getattr(item, "function").__module__.rpartition(".")[2]  # noqa: B009 - not every item has one
        shares = group in SHARED and OWN not in getattr(item, "fixturenames", ()) and item.name not in LONG
        if os.geteuid() != 0 or not (shares or group in ONLY_THERE or item.name in CHOSEN):
            item.add_marker(pytest.mark.slow)

    for item in items:
        if isinstance(item, pytest.Function) and getattr(item.module, "RUNTIME", "") == "runsc":
            module = item.function.__module__.rpartition(".")[2]
            if module not in AT_RUNSC or item.function.__name__ in LONG_AT_RUNSC:
                item.add_marker("slow")


@pytest.fixture(scope="module")
async def conformance_host(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Host]:
    """This machine with that runtime. One that cannot be used here is skipped, or fails, with its own sentence."""
    name: str = request.module.RUNTIME
    isolated = name != "process"
    try:
        host = await Host.local(name, "container" if isolated else "none", allow_unisolated=not isolated)
    except Refused as refused:
        skip_unless_required(name, refused)
    yield host
    await host.aclose()
