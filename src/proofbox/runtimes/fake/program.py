"""What a command of the fake guest is, and the few that it knows by itself."""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import anyio


class ProgramDied(Exception):
    """A program ends as if by this signal."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"signal {signal}")
        self.signal = signal


@dataclass(slots=True)
class FakeCommand:
    """The surroundings of one running program: its argv, environment and pipes."""

    args: list[str]
    env: dict[str, str]
    write: Callable[[int, bytes], Awaitable[None]]
    """Bytes to pipe 1, 2 or 3; waits for credit."""
    receive: Callable[[int], Awaitable[bytes]]
    """Bytes from pipe 0 or 3; ``b""`` at the end."""


Program = Callable[[FakeCommand], Awaitable[int]]
"""Gives the exit code, 0 to 255; a ``ProgramDied`` is a death by signal."""


async def _echo(command: FakeCommand) -> int:
    await command.write(1, " ".join(command.args[1:]).encode() + b"\n")
    return 0


async def _complain(command: FakeCommand) -> int:
    await command.write(2, " ".join(command.args[1:]).encode() + b"\n")
    return 0


async def _sleep(command: FakeCommand) -> int:
    await anyio.sleep(float(command.args[1]))
    return 0


async def _cat(command: FakeCommand) -> int:
    while data := await command.receive(0):
        await command.write(1, data)
    return 0


async def _count(command: FakeCommand) -> int:
    total = 0
    while data := await command.receive(0):
        total += len(data)
    await command.write(1, b"%d\n" % total)
    return 0


async def _mirror(command: FakeCommand) -> int:
    while data := await command.receive(3):
        await command.write(3, data)
    return 0


async def _env(command: FakeCommand) -> int:
    await command.write(1, "".join(f"{name}={value}\n" for name, value in command.env.items()).encode())
    return 0


async def _zeros(command: FakeCommand) -> int:
    left = int(command.args[1])
    while left:
        piece = min(left, 65_536)
        await command.write(1, bytes(piece))
        left -= piece
    return 0


async def _exit(command: FakeCommand) -> int:
    return int(command.args[1])


async def _die(command: FakeCommand) -> int:
    raise ProgramDied(int(command.args[1]))


async def _true(command: FakeCommand) -> int:
    return 0


async def _false(command: FakeCommand) -> int:
    return 1


BUILT_IN: Final[Mapping[str, Program]] = {
    "cat": _cat,
    "complain": _complain,
    "count": _count,
    "die": _die,
    "echo": _echo,
    "env": _env,
    "exit": _exit,
    "false": _false,
    "mirror": _mirror,
    "sleep": _sleep,
    "true": _true,
    "zeros": _zeros,
}
"""``complain`` is echo on stderr, ``count`` is ``wc -c``, ``mirror`` sends back what comes on pipe 3, ``die N`` dies of
a signal, ``zeros N`` prints so many NUL bytes."""


async def run(command: FakeCommand, programs: Mapping[str, Program], *, shell: bool) -> int:
    """Runs an argv, or shell text: programs one after another with ``;`` between them, quoted as in a shell."""
    if not shell:
        return await _one(command, programs)
    code = 0
    lexer = shlex.shlex(command.args[0].replace("\n", ";"), posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words = [*lexer, ";"]
    while words:
        end = words.index(";")
        command.args, words = words[:end], words[end + 1 :]
        if command.args:
            code = await _one(command, programs)
            if command.args[0] == "exit":
                break
    return code


async def _one(command: FakeCommand, programs: Mapping[str, Program]) -> int:
    name = os.path.basename(command.args[0])
    program = programs.get(name) or BUILT_IN.get(name)
    if program is None:
        await command.write(2, f"{command.args[0]}: not found\n".encode())
        return 127
    return await program(command)
