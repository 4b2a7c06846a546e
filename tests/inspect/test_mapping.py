"""What the adapter does where Inspect's own suite does not look."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("inspect_ai", reason="inspect-ai is not installed: pip install 'proofbox[inspect]'")

from inspect_ai.util import ComposeConfig, ComposeService, OutputLimitExceededError
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

from proofbox.errors import InvalidInput, Refused, SandboxLost
from proofbox.integrations.inspect import ProofboxConfig, ProofboxSandboxEnvironment
from proofbox.testing.needs import skip_unless_required

pytestmark = [pytest.mark.anyio, pytest.mark.container]


@pytest.fixture
def anyio_backend() -> str:
    """Inspect's default."""
    return "asyncio"


@pytest.fixture
async def env() -> AsyncIterator[ProofboxSandboxEnvironment]:
    """A sample's sandbox at the runtime ``native``."""
    try:
        made = await ProofboxSandboxEnvironment.sample_init("mapping", ProofboxConfig(runtime="native"), {})
    except Refused as refused:
        skip_unless_required("native", refused)
    yield made["default"].as_type(ProofboxSandboxEnvironment)
    await ProofboxSandboxEnvironment.sample_cleanup("mapping", None, made, True)
    await ProofboxSandboxEnvironment.sample_cleanup("mapping", None, made, True)


async def test_a_command_that_timed_out_is_not_run_again(env: ProofboxSandboxEnvironment) -> None:
    """``timeout_retry`` would run it up to three times; what it did would be done three times."""
    with pytest.raises(TimeoutError):
        await env.exec(["sh", "-c", "echo x >> log; sleep 60"], timeout=1, timeout_retry=True)
    assert await env.read_file("log") == "x\n"


async def test_output_above_the_limit_is_an_error(env: ProofboxSandboxEnvironment) -> None:
    """The first 10 MiB are in it; 10 MiB exactly are none."""
    assert len((await env.exec(["head", "-c", str(10 << 20), "/dev/zero"])).stdout) == 10 << 20
    with pytest.raises(OutputLimitExceededError, match="10 MiB") as caught:
        await env.exec(["head", "-c", str((10 << 20) + 1), "/dev/zero"])
    assert len(caught.value.truncated_output or "") == 10 << 20


async def test_text_that_is_not_utf8_is_an_error_when_read_as_text(env: ProofboxSandboxEnvironment) -> None:
    """As bytes it is what it is; printed by a command it does not fail the command."""
    await env.write_file("data", b"\xc3\x28")
    with pytest.raises(UnicodeDecodeError):
        await env.read_file("data")
    assert await env.read_file("data", text=False) == b"\xc3\x28"
    assert (await env.exec(["cat", "data"])).stdout == "\ufffd("


async def test_a_missing_directory_is_a_failed_command_that_names_it(env: ProofboxSandboxEnvironment) -> None:
    """As a container engine answers."""
    result = await env.exec(["true"], cwd="/no/such/place")
    assert not result.success
    assert "/no/such/place" in result.stderr


async def test_a_lost_sandbox_is_an_error_of_the_sample(env: ProofboxSandboxEnvironment) -> None:
    """Never a tool's answer, from which a model would go on in a world that is gone."""
    await env.box.aclose()
    with pytest.raises(SandboxLost):
        await env.exec(["true"])


def test_inspect_finds_it_by_name_and_reads_its_configuration() -> None:
    """What is written into a log gives the same configuration again; anything else is refused by name."""
    assert registry_find_sandboxenv("proofbox") is ProofboxSandboxEnvironment
    config = ProofboxConfig(template="host", memory=1 << 30, user="root")
    assert ProofboxSandboxEnvironment.config_deserialize(config.model_dump()) == config
    with pytest.raises(ValueError, match="memroy"):
        ProofboxSandboxEnvironment.config_deserialize({"memroy": 1})


async def test_no_weaker_level_than_the_one_that_is_asked_for() -> None:
    """A level that the named runtime does not have, and no isolation at all, are errors before any sandbox is made."""
    with pytest.raises(Refused, match="below 'vm'"):
        await ProofboxSandboxEnvironment.sample_init("x", ProofboxConfig(runtime="crun", level="vm"), {})
    with pytest.raises(Refused, match="isolates nothing"):
        await ProofboxSandboxEnvironment.sample_init("x", ProofboxConfig(runtime="process"), {})


async def test_an_unknown_configuration_is_refused() -> None:
    """A configuration of another provider is not taken for ours."""
    other = ComposeConfig(services={"a": ComposeService(image="b")})
    with pytest.raises(InvalidInput, match="ComposeConfig"):
        await ProofboxSandboxEnvironment.sample_init("x", other, {})
