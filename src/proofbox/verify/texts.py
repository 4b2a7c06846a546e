"""What is sent into the sandboxes to run there."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

PYTHON: Final = "python3"

CANDIDATE: Final = (
    PYTHON,
    "-I",
    "-S",
    "-E",
    "-c",
    # Reads one frame (see inside/channel.py) with the harness, compiled by the grader's equal interpreter: compiling its
    # text anew for each candidate would cost as much as the start of the interpreter.
    "import marshal, posix\n"
    "data = b''\n"
    "while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], 'little'):\n"
    "    chunk = posix.read(3, 262144)\n"
    "    if not chunk: posix._exit(0)\n"
    "    data += chunk\n"
    "end = 4 + int.from_bytes(data[:4], 'little')\n"
    "space = {'__name__': 'harness'}\n"
    "for code in marshal.loads(data[5:end]): exec(code, space)\n"
    "space['main'](data[end:])\n",
)
"""The candidate's interpreter. ``-I -S -E``: no environment, no current directory, no installed packages until one is asked for."""


@cache
def _text(name: str) -> tuple[str, str]:
    return f"<proofbox {name}>", (files("proofbox.verify.inside") / f"{name}.py").read_text("utf-8")


def grader_command(path: str) -> tuple[str, ...]:
    """The grader's server, listening on a Unix socket at ``path``; it sends the compiled harness on descriptor 3."""
    server = [_text("plain"), _text("channel"), _text("grader")]
    harness = [_text("plain"), _text("channel"), _text("candidate")]
    program = (
        "space = {'__name__': 'grader'}\n"
        f"for name, text in {server!r}: exec(compile(text, name, 'exec', dont_inherit=True), space)\n"
        f"space['serve']({path!r}, {harness!r})\n"
    )
    return (PYTHON, "-I", "-E", "-c", program)
