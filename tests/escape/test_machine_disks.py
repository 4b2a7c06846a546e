"""The disks of a machine: the images of its template and of its volumes, and those of other machines."""

from __future__ import annotations

import pytest
from tests.escape.conftest import AT_MACHINES, Inside

from proofbox.runtimes.microvm.image import machines

pytestmark = AT_MACHINES

ATTEMPTS = {
    **{
        f"/dev/{name}": f"os.open('/dev/{name}', os.O_RDONLY)"
        for name in ("vda", "vdb", "vdc", "loop0", "ram0", "pmem0")
    },
    "written": "os.open('/dev/vda', os.O_WRONLY)",
    "where init has them": "os.listdir('/image/0')",
    "where init has them, going up": "os.listdir('../' * 64 + 'image/0')",
    "by the bus": "os.listdir('/sys/block')",
    "by the file system's own directory": "os.listdir('/sys/fs/erofs')",
    "by number": "os.mknod(f'/tmp/d{os.getuid()}', 0o60666, os.makedev(254, 0))",
    "mounted": "call('mount', b'/dev/vda', b'/mnt', b'erofs', 1, 0)",
    "the host's images": "os.listdir(GIVEN['images'])",
}


async def test_no_disk_is_there(inside: Inside) -> None:
    """Neither its node, nor its place outside the sandbox, nor the host's directory of images."""
    told = await inside.outcomes(ATTEMPTS, images=str(machines()))
    assert {name: outcome for name, outcome in told.items() if outcome not in ("ENOENT", "EPERM", "EACCES")} == {}


WRITTEN = "echo x >> /usr/bin/env; chmod 777 /usr/bin; rm /bin/[; mv /usr/sbin /usr/s; sync"


async def test_an_image_stays_what_it_is(inside: Inside) -> None:
    """All machines of the template share it: what root changes and flushes is in the memory of its own machine."""
    if inside.user is not None:
        pytest.skip("only root can change what lies there")
    images = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in machines().glob("*.erofs")}
    assert images
    async with inside.open_box() as box:
        await box.run(WRITTEN)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in images} == images
    assert (await inside.box.run("env true && test -e /usr/sbin && stat -c %a /usr/bin")).stdout == "755\n"
