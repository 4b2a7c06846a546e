"""The images of a machine's disks: those of its template and its volumes, and those of other machines."""

from __future__ import annotations

from tests.escape.conftest import AT_MACHINES, WHOEVER, Inside

from proofbox.runtimes.microvm.image import machines

pytestmark = AT_MACHINES

ATTEMPTS = {
    "where init has them": "os.listdir('/image/0')",
    "where init has them, going up": "os.listdir('../' * 64 + 'image/0')",
    "by the file system's own directory": "os.listdir('/sys/fs/erofs')",
    "the host's images": "os.listdir(GIVEN['images'])",
}


async def test_no_image_is_there(inside: Inside) -> None:
    """Neither its place outside the sandbox, nor the host's directory of images."""
    told = await inside.outcomes(ATTEMPTS, images=str(machines()))
    assert set(told.values()) == {"ENOENT"}


WRITTEN = "echo x >> /usr/bin/env; chmod 777 /usr/bin; rm /bin/[; mv /usr/sbin /usr/s; sync"


@WHOEVER
async def test_an_image_stays_what_it_is(inside: Inside) -> None:
    """All machines of the template share it: what root changes and flushes is in the memory of its own machine."""
    images = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in machines().glob("*.erofs")}
    assert images
    async with inside.open_box() as box:
        await box.run(WRITTEN)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in images} == images
    assert (await inside.box.run("env true && test -e /usr/sbin && stat -c %a /usr/bin")).stdout == "755\n"
