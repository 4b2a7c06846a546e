"""The suite that Inspect publishes for providers of sandboxes, all of it, on every runtime of level ``container``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed: pip install 'proofbox[inspect]'")

from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - this is how a provider runs it

from proofbox.errors import Refused
from proofbox.integrations.inspect import ProofboxConfig, ProofboxSandboxEnvironment
from proofbox.testing.needs import skip_unless_required

if TYPE_CHECKING:
    from inspect_ai.util import SandboxEnvironment

NEED_USERS = {
    "test_exec_as_user",
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}

pytestmark = [pytest.mark.anyio, pytest.mark.container]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Inspect's default."""
    return "asyncio"


@pytest.fixture(scope="module", params=["native", "crun", pytest.param("runc", marks=pytest.mark.slow)])
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    """One sandbox for all checks of a runtime, made and ended as Inspect does it."""
    config = ProofboxConfig(runtime=request.param)
    try:
        environments = await ProofboxSandboxEnvironment.sample_init("self_check", config, {})
    except Refused as refused:
        skip_unless_required(request.param, refused)
    yield environments["default"]
    await ProofboxSandboxEnvironment.sample_cleanup("self_check", config, environments, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, opened: SandboxEnvironment) -> SandboxEnvironment:
    """The name that the suite asks for. Without a range of ids there is only root inside, whom no permission stops."""
    probe = opened.as_type(ProofboxSandboxEnvironment).box.host.probe
    if not probe.users and request.node.originalname in NEED_USERS:
        pytest.skip(f"needs several users inside: {'; '.join(probe.notes)}")
    return opened
