"""`proofbox sandbox run` and `proofbox sandbox shell`: the command's own bytes and status, and nothing else."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from .conftest import Run


@pytest.mark.parametrize("code", [0, 1, 2, 7, 124, 125, 255])
def test_the_exit_status_is_the_commands_own(proofbox: Run, code: int) -> None:
    """Whatever it is, and nothing is said on standard error about it."""
    done = proofbox("sandbox", "run", "host", "--", "sh", "-c", f"exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_who_is_root_of_a_namespace_with_one_id_has_sandboxes_too(
    argv: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    """The template `host` has files of a user whom that root cannot give them to."""
    inside = ["unshare", "-Urm", *argv, "sandbox", "run", "--runtime", "native", "host", "--", "id", "-u"]
    own = environment | {"PROOFBOX_HOME": str(tmp_path / "home")}
    done = subprocess.run(inside, capture_output=True, env=own, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0\n", b"")


def test_output_is_passed_on_byte_for_byte(proofbox: Run) -> None:
    """Bytes that are no text, on two streams that stay apart."""
    done = proofbox("sandbox", "run", "-s", "host", "--", r"printf 'a\000\377\r\n'; printf 'e\376' >&2")
    assert done.returncode == 0
    assert done.stdout == b"a\0\xff\r\n"
    assert done.stderr == b"e\xfe"


def test_output_larger_than_what_a_result_keeps_is_whole(proofbox: Run) -> None:
    """Streamed output is never cut, however long it is."""
    done = proofbox("sandbox", "run", "host", "--", "head", "-c", "20000000", "/dev/zero")
    assert done.returncode == 0
    assert len(done.stdout) == 20_000_000


def test_a_command_that_does_not_exist_is_127_with_the_shells_message(proofbox: Run) -> None:
    """As in a shell: this is the command's failure, not the harness's."""
    done = proofbox("sandbox", "run", "host", "--", "no-such-program")
    assert done.returncode == 127
    assert b"no-such-program" in done.stderr


def test_directories_go_in_before_the_command_and_out_after_it(proofbox: Run, tmp_path: Path) -> None:
    """Also out of one that failed; a link that leads out is refused with the harness's status, and leaves nothing."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/name").write_text("world")
    script = "cd /tmp/work; mkdir out; echo hello $(cat name) > out/said; exit 3"
    moved = ("--upload", f"{tmp_path}/in:/tmp/work", "--download", f"/tmp/work/out:{tmp_path}/out")
    done = proofbox("sandbox", "run", *moved, "-s", "host", "--", script)
    assert (done.returncode, done.stderr) == (3, b"")
    assert (tmp_path / "out/said").read_text() == "hello world\n"
    (tmp_path / "in/link").symlink_to("/etc/passwd")
    done = proofbox("sandbox", "run", "--upload", f"{tmp_path}/in:/tmp/work", "host", "--", "true")
    assert done.returncode == 125
    assert b"the link 'link' to '/etc/passwd' may lead out" in done.stderr


def test_a_signal_is_128_and_its_number(proofbox: Run) -> None:
    """A program that ends by a signal has the status that a shell would give it."""
    assert proofbox("sandbox", "run", "-s", "host", "--", "kill -TERM $$").returncode == 128 + signal.SIGTERM


def test_a_limit_that_ends_the_command_has_its_own_status_and_says_which(proofbox: Run) -> None:
    """124 and the kind, the configured value and the time."""
    done = proofbox("sandbox", "run", "--timeout", "200ms", "host", "--", "sleep", "30")
    assert done.returncode == 124
    assert b"command_wall of 0.2" in done.stderr


def test_stdin_is_handed_on_only_when_asked_for(proofbox: Run) -> None:
    """With -i the command reads ours to its end; without it reads nothing, and does not wait."""
    assert proofbox("sandbox", "run", "-i", "host", "--", "wc", "-c", stdin=b"x" * 100_000).stdout.split() == [
        b"100000"
    ]
    assert proofbox("sandbox", "run", "host", "--", "wc", "-c", stdin=b"xxxx").stdout.split() == [b"0"]


def test_stdin_from_a_file_is_handed_on(argv: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    """A redirected regular file cannot be polled, and works all the same."""
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    with (tmp_path / "in").open("rb") as given:
        done = subprocess.run(
            [*argv, "sandbox", "run", "-i", "host", "--", "cat"],
            stdin=given,
            capture_output=True,
            env=environment,
            check=True,
        )
    assert done.stdout == b"one\ntwo\n"


def test_a_command_that_ends_before_its_stdin_does_not_hang(proofbox: Run) -> None:
    """What it has not read is dropped; its status stands."""
    assert proofbox("sandbox", "run", "-i", "host", "--", "true", stdin=b"x" * 1_000_000).returncode == 0


def test_environment_and_directory_are_the_ones_asked_for(proofbox: Run) -> None:
    """--env with any value, --cwd, and nothing of our own environment."""
    done = proofbox(
        "sandbox", "run", "--env", "A=b=c d", "--cwd", "/usr", "-s", "host", "--", 'echo "$A|$PWD|$SECRET"', SECRET="x"
    )
    assert done.stdout == b"b=c d|/usr|\n"


def test_a_volume_is_seen_and_cannot_be_written(proofbox: Run, tmp_path: Path) -> None:
    """A file of the host at the path that was asked for, read-only."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "f").write_text("hello")
    done = proofbox(
        "sandbox",
        "run",
        "--volume",
        f"{shared}:/data",
        "-s",
        "host",
        "--",
        "cat /data/f; echo x > /data/g || echo refused",
    )
    assert done.stdout == b"hellorefused\n"
    assert list(shared.iterdir()) == [shared / "f"]


def test_ctrl_c_reaches_the_command(argv: list[str], environment: dict[str, str]) -> None:
    """The command may end in its own way, and its status is passed on."""
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [*argv, "sandbox", "run", "-s", "host", "--", script], stdout=subprocess.PIPE, env=environment
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.read() == b"caught\n"
        assert running.wait(timeout=30) == 9


class Terminal:
    """A terminal with `proofbox sandbox shell` in it."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(30, 90)
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""
        self.running = subprocess.Popen(
            [*argv, "sandbox", "shell"],
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env=environment | {"TERM": "xterm", "PS1": "$ "},
            start_new_session=True,
        )

    def resize(self, rows: int, columns: int) -> None:
        """As a window that is dragged."""
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        """Keys, Return included."""
        os.write(self.ours, text.encode() + b"\r")

    def wait_for(self, text: bytes, seconds: float = 30.0) -> None:
        """Reads until ``text`` has appeared after the last one that was waited for."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            ready, _, _ = select.select([self.ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come; seen: {self.seen!r}"
            self.seen += os.read(self.ours, 65536)
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        """Ends what still runs."""
        if self.running.poll() is None:
            self.running.kill()
        self.running.wait()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def terminal(argv: list[str], environment: dict[str, str]) -> Terminal:
    """A shell in a sandbox in a terminal; the test closes it."""
    return Terminal(argv, environment)


def test_the_shell_has_a_terminal_follows_its_size_and_gives_it_back(terminal: Terminal) -> None:
    """Size at the start and after a change, Ctrl-C inside, the shell's exit status, the settings restored."""
    try:
        terminal.type("stty size; echo $((40+2))-started")
        terminal.wait_for(b"30 90")
        terminal.wait_for(b"42-started")
        terminal.resize(40, 100)
        terminal.running.send_signal(signal.SIGWINCH)
        terminal.type("sleep 0.2; stty size; echo $((40+3))-resized")
        terminal.wait_for(b"40 100")
        terminal.wait_for(b"43-resized")
        terminal.type("sleep 100")
        time.sleep(0.3)
        os.write(terminal.ours, b"\x03")
        terminal.type("echo $((40+4))-interrupted")
        terminal.wait_for(b"44-interrupted")
        terminal.type("exit 7")
        assert terminal.running.wait(timeout=30) == 7
        assert termios.tcgetattr(terminal.theirs) == terminal.before
    finally:
        terminal.close()


def test_the_terminal_is_given_back_when_we_are_told_to_end(terminal: Terminal) -> None:
    """SIGTERM to the command line ends the shell, and the terminal is as it was."""
    try:
        terminal.type("echo $((40+2))-started")
        terminal.wait_for(b"42-started")
        terminal.running.send_signal(signal.SIGTERM)
        assert terminal.running.wait(timeout=30) == 137
        assert termios.tcgetattr(terminal.theirs) == terminal.before
    finally:
        terminal.close()


@pytest.mark.parametrize("form", [(), ("--full",)], ids=["cheap", "full"])
def test_two_starts_have_the_same_fingerprint(proofbox: Run, tmp_path: Path, form: tuple[str, ...]) -> None:
    """In two processes; and as JSON it has the lines that a difference is found by."""
    root = tmp_path / "root"
    for name in ("dev", "etc", "proc", "tmp"):
        (root / name).mkdir(parents=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\n")
    store = {"PROOFBOX_HOME": str(tmp_path / "home")}
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(above.stat().st_mode | 0o055)
    assert proofbox("template", "import", str(root), "--name", "small", **store).returncode == 0
    first, second = (proofbox("sandbox", "fingerprint", "small", *form, **store) for _ in range(2))
    if b"refused" in first.stderr:
        pytest.skip(first.stderr.decode())
    assert (first.returncode, first.stderr) == (0, b"")
    assert first.stdout == second.stdout
    told = json.loads(proofbox("sandbox", "fingerprint", "small", *form, "--json", **store).stdout)
    assert told["digest"] == first.stdout.decode().split()[-1]
    assert told["full"] == bool(form)
    assert [part["name"] for part in told["parts"]][:2] == ["files", "processes"]
    assert any(line.startswith("/etc/passwd ") for line in told["parts"][0]["lines"]) == bool(form)
