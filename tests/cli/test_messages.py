"""What a user sees who asks for something that makes no sense, and how quickly help is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import Run


def test_help_names_every_command_and_loads_nothing_heavy(proofbox: Run) -> None:
    """`proofbox --help` is there at once: it imports neither an event loop nor a terminal library."""
    listed = proofbox("--help")
    assert listed.returncode == 0
    for command in (b"run", b"report", b"sandbox", b"template", b"doctor", b"gc", b"demo"):
        assert b"\n  " + command + b" " in listed.stdout
    code = (
        "import sys; from proofbox.cli.app import invoke; status = invoke(['--help']);"
        "print(status, sorted({'anyio', 'msgspec', 'rich', 'asyncio', 'ssl'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert loaded.stdout.splitlines()[-1] == b"0 []"


def test_the_version_is_that_of_the_package(proofbox: Run) -> None:
    """`--version` prints one line with name and number."""
    shown = proofbox("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith(b"proofbox 0.")


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["nope"], 2, b"nope"),
        (["run"], 2, b"which task set"),
        (["run", "humaneval"], 2, b"--samples FILE or --agent NAME"),
        (
            ["run", "humaneval", "--agent", "reference", "--samples", "/etc/passwd"],
            2,
            b"--samples FILE or --agent NAME",
        ),
        (["run", "humaneval", "--samples", "/not/there.jsonl"], 2, b"/not/there.jsonl"),
        (["run", "humaneval", "--samples", "/etc/passwd", "-n", "2"], 2, b"--group"),
        (["run", "humaneval", "--agent", "nop", "-j", "0"], 2, b"-j"),
        (["run", "humaneval", "--agent", "nop", "--limit", "memory=much"], 2, b"'much' is not a size"),
        (["run", "humaneval", "--agent", "nop", "--limit", "speed=3"], 2, b"speed=3"),
        (["run", "humaneval", "--agent", "nop", "--timeout", "soon"], 2, b"'soon' is not a time"),
        (["run", "humaneval", "--agent", "nop", "--k", "1,x"], 2, b"'x' is not a whole number"),
        (["run", "humaneval", "--agent", "nop", "--tasks", "Nope/*"], 2, b"Nope/*"),
        (["run", "humaneval", "--agent", "nop", "--runtime", "nope"], 2, b"no runtime 'nope'"),
        (["run", "--resume", "no-such-run"], 2, b"no-such-run"),
        (["run", "--resume", "../../etc"], 2, b"etc"),
        (["run", "--resume", "some-run", "--agent", "nop"], 2, b"--resume"),
        (["report", "no-such-run"], 2, b"no-such-run"),
        (["doctor", "--runtime", "nope"], 2, b"no runtime 'nope'"),
        (["template", "show", "nope"], 2, b"no template 'nope'"),
        (["template", "import", "/etc/hostname", "--name", "NO"], 2, b"NO"),
        (["sandbox", "run", "nope", "--", "true"], 125, b"no template 'nope'"),
        (["sandbox", "run", "host"], 125, b"COMMAND"),
        (["sandbox", "run", "--limit", "x", "host", "--", "true"], 125, b"--limit"),
        (["sandbox", "run", "--runtime", "nope", "host", "--", "true"], 125, b"no runtime 'nope'"),
        (["sandbox", "run", "--env", "x", "host", "--", "true"], 125, b"NAME=VALUE"),
        (["sandbox", "run", "--volume", "/etc", "host", "--", "true"], 125, b"SOURCE:TARGET"),
        (["sandbox", "run", "--runtime", "process", "host", "--", "true"], 125, b"unisolated"),
        (["sandbox", "shell", "host"], 125, b"terminal"),
    ],
)
def test_a_senseless_request_is_one_message_and_its_own_status(
    proofbox: Run, args: list[str], status: int, message: bytes
) -> None:
    """No traceback, one line that names what was wrong, status 2 (125 where it could be taken for a command's own)."""
    done = proofbox(*args)
    assert message in done.stderr, done.stderr
    assert done.returncode == status
    assert done.stderr.startswith(b"proofbox: ")
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""
