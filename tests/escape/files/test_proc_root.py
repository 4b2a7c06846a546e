"""/proc/PID/root and /proc/PID/cwd: links of the kernel's, which lead where no path does."""

from __future__ import annotations

from tests.escape.attempts import of_the_client
from tests.escape.conftest import Inside

ATTEMPTS = {
    "by the root of a process": "read('/proc/self/root' + GIVEN['file'])",
    "by the root of a thread": "read(f'/proc/self/task/{os.getpid()}/root' + GIVEN['file'])",
    "by a link into /proc": "os.symlink(f'/proc/{GIVEN[\"client\"]}/root', f'/tmp/p{os.getuid()}'); "
    "read(f'/tmp/p{os.getuid()}' + GIVEN['file'])",
    "by the client's directory": "read(f'/proc/{GIVEN[\"client\"]}/cwd/pyproject.toml')",
}


async def test_the_root_of_a_process_is_the_sandboxes(inside: Inside) -> None:
    """Of one inside it is the sandbox's own root, and there is none of the host's."""
    await inside.expect(of_the_client(ATTEMPTS, inside.given["client"]), "ENOENT")
