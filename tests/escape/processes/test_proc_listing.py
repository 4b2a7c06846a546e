"""Looking around in /proc, and calling all numbers, for processes of the host."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "programs of the host": """
said = [pid for pid in others() if 'sleep' in read(f'/proc/{pid}/cmdline')] or 'none'
""",
    "who is there and not shown": """
shown = {int(name) for name in os.listdir('/proc') if name.isdigit()}
shown |= {int(task) for pid in shown for task in os.listdir(f'/proc/{pid}/task')}
said = []
for pid in range(1, 2000):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        continue
    except PermissionError:
        pass
    if pid not in shown:
        said.append(pid)
said = said or 'none'
""",
}


async def test_nobody_of_the_host_is_found(inside: Inside) -> None:
    """Who can be called is who is shown, and those are the sandbox's."""
    await inside.expect(ATTEMPTS, "none")
