"""What is sent into the sandboxes to run there."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

PYTHON: Final = "python3"

# Reads one frame (see inside/channel.py) with the harness, compiled by the grader's equal interpreter: compiling its
# text anew for each candidate would cost as much as half the start of the interpreter.
_BOOT: Final = """import marshal, posix
data = b""
while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "little"):
    chunk = posix.read(3, 262144)
    if not chunk: posix._exit(0)
    data += chunk
end = 4 + int.from_bytes(data[:4], "little")
space = {"__name__": "harness"}
for code in marshal.loads(data[5:end]): exec(code, space)
space["main"](data[end:])
"""

CANDIDATE: Final = (PYTHON, "-I", "-S", "-E", "-c", _BOOT)
"""The candidate's interpreter: no environment, no current directory, no installed packages until one is asked for."""


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
