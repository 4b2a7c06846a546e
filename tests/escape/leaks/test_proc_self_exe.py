"""The guest's program by /proc/self/exe: a sandbox that could change it would be executed by every later one
(CVE-2019-5736).
"""

from __future__ import annotations

import hashlib
import os

from tests.escape.conftest import Inside

from proofbox.errors import ProofboxError
from proofbox.kit.binary import guest_path

REACH = """
said = 'not there'
for pid in others():
    try:
        os.readlink(f'/proc/{pid}/exe')
    except OSError:
        continue
    said = []
    for attempt in (
        lambda: os.close(os.open(f'/proc/{pid}/exe', os.O_WRONLY)),
        lambda: os.truncate(f'/proc/{pid}/exe', 0),
        lambda: os.chmod(f'/proc/{pid}/exe', 0o4777),
        lambda: os.chown(f'/proc/{pid}/exe', os.getuid(), os.getgid()),
        lambda: os.setxattr(f'/proc/{pid}/exe', 'user.mine', b'1'),
        lambda: os.utime(f'/proc/{pid}/exe', (1, 1)),
        lambda: os.link(f'/proc/{pid}/exe', '/tmp/exe', follow_symlinks=True),
    ):
        try:
            attempt()
            said.append('done')
        except OSError as error:
            said.append(errno.errorcode[error.errno])
"""


def state() -> tuple[object, ...]:
    """What must not change of it."""
    found = os.stat(guest_path())
    content = hashlib.sha256(guest_path().read_bytes()).hexdigest()
    return content, found.st_mode, found.st_uid, found.st_mtime_ns, found.st_ctime_ns, os.listxattr(guest_path())


COMMANDS = (["/proc/self/exe", "launcher", "0"], ["/tmp/again"], ["/proc/self/exe", "guest", "0"])


async def test_a_guest_that_is_made_to_run_itself_does_not_give_its_file_away(inside: Inside) -> None:
    """Its file is open to whoever runs it; on the host it stays the same, its mode and attributes included."""
    before = state()
    async with inside.open_box() as box:
        await box.write("/tmp/again", "#!/proc/self/exe launcher\n", mode=0o755)
        for command in COMMANDS:
            running = await box.start(command, stdin=True, user=inside.user)
            for _ in range(2):
                await inside.outcomes({"reach": REACH}, box)
            await running.kill()
        assert state() == before
        for path in ("/proc/self/exe", "/tmp/link"):
            await box.run(["ln", "-sf", "/proc/self/exe", "/tmp/link"])
            for operation in (
                lambda path=path: box.files.chmod(path, 0o4777),
                lambda path=path: box.write(path, "mine", mode=0o777),
                lambda path=path: box.write(path, "mine", append=True),
                lambda path=path: box.files.remove(path),
            ):
                try:
                    await operation()
                except ProofboxError:
                    continue
        assert state() == before
