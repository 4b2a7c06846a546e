"""QEMU's monitor protocol: a line of JSON for each command, and one for each answer. On a socket that nobody else has.

QEMU is confined because a guest may take it over, so what it says is not trusted: lines are bounded, and waits have a
deadline. Nothing of an answer becomes a path or a size here.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from typing import Any, Final

import anyio
import msgspec

from proofbox.errors import SandboxLost

DEADLINE_S: Final = 30.0
"""For an answer; on an idle host they take a millisecond."""
LINE: Final = 1 << 20
CHUNK: Final = 1 << 16


class _Answer(msgspec.Struct, frozen=True):
    """An answer has the command's ``id``; events, QEMU's first word and answers to what was sent ahead have none."""

    id: str = ""
    result: Any = msgspec.field(default=None, name="return")
    error: dict[str, Any] | None = None


class Monitor:
    """Our end of the socket, which this does not close. One task at a time may give commands."""

    __slots__ = ("_decoder", "_left", "_ready", "_socket")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._left = b""
        self._ready = False
        self._decoder = msgspec.json.Decoder(_Answer)

    def send_ahead(self, *commands: tuple[str, dict[str, Any]]) -> None:
        """Has QEMU carry these out as soon as it runs, before it is there to answer. Their answers are not waited for.

        Before any ``command``, once. What fails ends QEMU or leaves its guest silent.
        """
        words = b"".join(_line(name, arguments) for name, arguments in (("qmp_capabilities", {}), *commands))
        self._socket.sendall(words)  # some hundred bytes, into an empty buffer
        self._ready = True

    async def command(self, name: str, /, *, passed: Sequence[int] = (), **arguments: Any) -> Any:
        """Gives a command, with descriptors if ``passed``, and waits for what it returns.

        Raises ``SandboxLost`` with what QEMU says where it refuses, has ended, or does not answer. Once it
        was cancelled no other command can be given.
        """
        try:
            with anyio.fail_after(DEADLINE_S):
                if not self._ready:
                    await self._exchange("qmp_capabilities", {}, ())
                    self._ready = True
                return await self._exchange(name, arguments, passed)
        except TimeoutError:
            raise SandboxLost(f"QEMU did not answer to {name} within {DEADLINE_S:g} s", "monitor") from None
        except (OSError, msgspec.DecodeError) as error:
            raise SandboxLost(f"QEMU's monitor, {name}: {error}", "monitor") from error

    async def _exchange(self, name: str, arguments: dict[str, Any], passed: Sequence[int]) -> Any:
        await anyio.wait_writable(self._socket)
        socket.send_fds(self._socket, [_line(name, arguments, name)], list(passed))
        while True:
            answer = self._decoder.decode(await self._line())
            if answer.id == name and answer.error is not None:
                raise SandboxLost(f"QEMU refused {name}: {answer.error.get('desc')}", "monitor")
            if answer.id == name:
                return answer.result

    async def _line(self) -> bytes:
        while b"\n" not in self._left:
            await anyio.wait_readable(self._socket)
            data = self._socket.recv(CHUNK)
            if not data:
                raise OSError(errno.EPIPE, "QEMU has ended")
            self._left += data
            if len(self._left) > LINE:
                raise OSError(errno.EMSGSIZE, f"a line of more than {LINE} bytes")
        line, _, self._left = self._left.partition(b"\n")
        return line


def _line(name: str, arguments: dict[str, Any], ident: str = "") -> bytes:
    words: dict[str, Any] = {"execute": name, "arguments": arguments}
    return msgspec.json.encode(words | ({"id": ident} if ident else {})) + b"\n"
