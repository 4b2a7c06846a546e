"""Operation ids: what was done once under an id is never done twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from proofbox.errors import Busy, InvalidInput, OperationFailed, ProofboxError
from proofbox.sandbox.given import as_bytes
from proofbox.sandbox.result import CommandResult

REMEMBERED: Final = 64 << 20
"""Bytes of output of all results together that are kept for a repetition."""


class _Op:
    __slots__ = ("asked", "done", "error", "result")

    def __init__(self, asked: object) -> None:
        self.asked = asked
        self.done = anyio.Event()
        self.result: CommandResult | None = None
        self.error: ProofboxError | None = None


class Ops:
    """The results of one sandbox's commands that were started with an id, for as long as it lives."""

    __slots__ = ("_held", "_ops")

    def __init__(self) -> None:
        self._ops: dict[object, _Op] = {}
        self._held = 0

    async def once(self, op: object, asked: object, work: Callable[[], Awaitable[CommandResult]]) -> CommandResult:
        """The result of ``work`` under this id: of the first call, whenever that was. It runs at most once.

        Raises what the first call raised; ``InvalidInput`` if the id stands for something else; ``OperationFailed``
        (step ``forgotten``) if the result was too big to be kept, or (step ``cancelled``) if the first caller was
        cancelled.
        """
        if not isinstance(op, str) or not 0 < len(as_bytes(op, "op")) <= 200:
            raise InvalidInput(f"an operation id has 1 to 200 bytes, not {op!r}")
        known = self._ops.get(op)
        if known is not None:
            return await self._again(op, known, asked)
        mine = self._ops[op] = _Op(asked)
        try:
            mine.result = await work()
        except Busy as error:  # nothing was started, and the same call may be made again
            del self._ops[op]
            mine.error = error
            raise
        except ProofboxError as error:
            mine.error = error
            raise
        except BaseException:
            mine.error = OperationFailed(
                f"operation {op!r} was cancelled and its command killed; use a new id", "cancelled"
            )
            raise
        finally:
            mine.done.set()
        self._remember(mine.result)
        return mine.result

    async def _again(self, op: object, known: _Op, asked: object) -> CommandResult:
        if known.asked != asked:
            raise InvalidInput(
                f"operation id {op!r} was used for another command or other arguments; ids are used once"
            )
        await known.done.wait()
        if known.result is not None:
            return known.result
        raise known.error or OperationFailed(
            f"operation {op!r} has ended, and its output was too big to keep", "forgotten"
        )

    def _remember(self, result: CommandResult) -> None:
        self._held += _size(result)
        for other in self._ops.values():
            if self._held <= REMEMBERED:
                break
            if other.result is not None and _size(other.result):
                self._held -= _size(other.result)
                other.result = None


def _size(result: CommandResult) -> int:
    return len(result.stdout_bytes) + len(result.stderr_bytes)
