"""A file that becomes a hard link to one of the host's, or of somebody else's, while the host reads and writes it."""

from __future__ import annotations

from pathlib import Path

from tests.escape.conftest import Inside
from tests.escape.files.racing import read_and_written

from proofbox.model.spec import Volume

SWAP = """
import os
os.makedirs('/tmp/race', exist_ok=True)
ready = False
while True:
    for target in ('/vol/file', '/usr/bin/env', '/closed/secret', None):
        try:
            if target is None:
                open('/tmp/race/new', 'w').write('mine')
            else:
                os.link(target, '/tmp/race/new')
            os.rename('/tmp/race/new', '/tmp/race/way')
        except OSError:
            pass
    if not ready:
        ready = True
        print('ready', flush=True)
"""


async def test_a_race_of_hard_links_changes_no_file_of_the_host(inside: Inside, shared: Path) -> None:
    """A volume's file cannot be linked to at all, a template's is copied first, and what only root may read is root's:
    who asks the host for it as the attacker gets nothing of it.
    """
    watched = (shared / "file", Path("/usr/bin/env"))
    before = [(path.read_bytes(), path.stat().st_nlink, path.stat().st_mtime_ns) for path in watched]
    async with inside.open_box(volumes=(Volume(str(shared), "/vol"),)) as box:
        await box.write("/closed/secret", "secret", mode=0o600)
        await box.files.chmod("/closed", 0o755)
        racing = await box.start(["python3", "-I", "-S", "-c", SWAP], user=inside.user)
        async for _ in racing.output():
            break
        read = await read_and_written(box, "/tmp/race/way", "host", inside.user)
        await racing.kill()
        assert b"shared" not in read
        if inside.user is not None:
            assert b"secret" not in read
            assert await box.read("/closed/secret") == b"secret"
    assert [(path.read_bytes(), path.stat().st_nlink, path.stat().st_mtime_ns) for path in watched] == before
