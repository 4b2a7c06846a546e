"""Every check of the suite. For a runtime's own tests::

    import pytest
    from proofbox.sandbox.host import Host
    from proofbox.testing.conformance import *

    @pytest.fixture(scope="module")
    async def conformance_host():
        host = await Host.local("my-runtime")
        yield host
        await host.aclose()

pytest with anyio's plugin (it comes with anyio) collects the checks. One that needs an ability which the runtime's
probe does not offer is skipped with the probe's reason; what the runtime claims has to pass.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("proofbox.testing.checks")

from proofbox.testing import needs  # noqa: E402 - after the registration, or asserts say nothing
from proofbox.testing.checks import (  # noqa: E402
    background,
    commands,
    files,
    forks,
    isolation,
    lifecycle,
    limits,
    memory_forks,
    output,
    timeouts,
    trees,
)

FIXTURES = ("anyio_backend", "abilities", "conformance_template", "box", "place", "open_box", "marker")
MODULES = (output, commands, background, timeouts, files, trees, limits, isolation, lifecycle, forks, memory_forks)

globals().update({name: getattr(needs, name) for name in FIXTURES})
for _module in MODULES:
    globals().update({name: value for name, value in vars(_module).items() if name.startswith("test_")})

__all__ = [*FIXTURES, *(name for module in MODULES for name in vars(module) if name.startswith("test_"))]  # noqa: PLE0604
