"""One command of a build in a sandbox of its own, and the layers that it leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from proofbox.build.mounts import Seen
from proofbox.build.plan import RunCommand
from proofbox.build.recipe import LIMITS
from proofbox.errors import BuildFailed, OperationFailed
from proofbox.model.limits import Limits
from proofbox.model.outcome import Exited, HitLimit
from proofbox.sandbox.host import BY_THIS_LAYER, Host
from proofbox.sandbox.result import CommandResult

Layers = tuple[tuple[str, str], ...]
"""Target and digest of each, the first one on top."""

TOLD: Final = 1500
"""Bytes of output that an error names."""


def limits_of(host: Host, asked: Limits) -> Limits:
    """``asked``, and of ``LIMITS`` what this host enforces."""
    enforced = host.probe.enforces | BY_THIS_LAYER
    return asked.over(Limits(**{kind: getattr(LIMITS, kind) for kind in LIMITS.asked() if kind in enforced}))


async def run_command(
    host: Host, seen: Seen, action: RunCommand, limits: Limits, where: str, show: Callable[[int, bytes], None]
) -> Layers:
    """Runs it over what it sees; target and digest of each layer that came of it, in the host's store.

    Raises ``BuildFailed`` if it ends with anything but 0, ``InvalidInput`` if it changed a mounted file, and what a
    sandbox raises; then, and when cancelled, nothing is left.
    """
    async with host.open_sandbox(
        seen.template,
        limits=limits_of(host, limits),
        network=action.network,
        user=action.user,
        env=dict(action.proxies + action.env),
        cwd=action.cwd,
        seed="",  # a step may empty or remove /etc/machine-id, as many images' last step does
    ) as box:
        try:
            command = await box.start(action.argv, keep=None)
        except OperationFailed as error:
            raise BuildFailed(f"{where}: `{action.text}` did not start: {error}") from error
        last: deque[bytes] = deque(maxlen=64)
        async for pipe, data in command.output():
            show(pipe, data)
            last.append(data)
        result = await command.wait()
        if not (isinstance(result.outcome, Exited) and result.outcome.code == 0):
            said = b"".join(last)[-TOLD:].decode("utf-8", "replace").strip()
            told = f"its output ends with:\n{said}" if said else "it printed nothing"
            hint = action.network == "none" and isinstance(result.outcome, Exited)
            network = " without a network (`--network host` gives steps the host's)" if hint else ""
            raise BuildFailed(f"{where}: `{action.text}` {_ended(result)}{network}; {told}")
        await box.freeze()
        made = await box.snapshot()
    own = made.layers[: len(made.layers) - len(seen.template.layers)]
    return tuple((layer.target, layer.digest) for layer in seen.kept(own))


def _ended(result: CommandResult) -> str:
    match result.outcome:
        case Exited(code):
            return f"ended with exit status {code}"
        case HitLimit() as hit:
            return f"reached the limit {hit.kind} of {hit.limit:.15g}"
    return f"ended with {result.outcome}"
