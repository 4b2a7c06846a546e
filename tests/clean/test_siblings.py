"""What has to differ between sandboxes of one template does, and a seed fixes it; what must not differ is found."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.clean.conftest import make_template

from proofbox.errors import FileFailed, InvalidInput, Refused, UncleanStart
from proofbox.host.unclean import noted
from proofbox.model.template import Template
from proofbox.sandbox.api import Sandbox
from proofbox.sandbox.host import Host

pytestmark = pytest.mark.anyio

BOOT_ID = "/proc/sys/kernel/random/boot_id"


async def identity(box: Sandbox) -> tuple[bytes, bytes]:
    """Machine id and boot id, as programs inside read them."""
    return await box.read("/etc/machine-id"), await box.read(BOOT_ID)


async def test_no_two_have_the_same_numbers(host: Host, template: Template) -> None:
    """Machine id, boot id and random numbers are nobody else's; the host name is what was asked for."""
    seen: list[bytes] = []
    for _ in range(3):
        async with host.open_sandbox(template, hostname="asked") as box:
            seen += await identity(box)
            seen.append(await box.read("/dev/urandom", limit=16))
            seen.append(await box.read("/proc/sys/kernel/random/uuid"))
            assert await box.read("/proc/sys/kernel/hostname") == b"asked\n"
    assert len(set(seen)) == len(seen)
    assert Path(BOOT_ID).read_bytes() not in seen


async def test_a_seed_fixes_them(host: Host, template: Template) -> None:
    """The same for the same seed, text or number, also at another runtime; another seed gives others."""
    found = []
    for seed in ("7", 7, "8"):
        async with host.open_sandbox(template, seed=seed) as box:
            found.append(await identity(box))
    assert found[0] == found[1] == (b"1b41f57264f646eeadf502dbd66f7bda\n", b"cdda9144-a045-4dd2-8e89-686251bdfed7\n")
    assert not set(found[0]) & set(found[2])
    for machine, boot in found:
        assert uuid.UUID(machine.decode().strip()).version == uuid.UUID(boot.decode().strip()).version == 4


async def test_nothing_inside_can_change_them(host: Host, template: Template) -> None:
    """They are read-only for the sandbox's root, and removing them does not bring back what lies below."""
    async with host.open_sandbox(template) as box:
        before = await identity(box)
        for path in ("/etc/machine-id", BOOT_ID):
            for attempt in (box.write(path, "evil"), box.files.remove(path), box.files.chmod(path, 0o777)):
                with pytest.raises(FileFailed):
                    await attempt
        assert await identity(box) == before


async def test_a_template_without_the_file_gets_none(host: Host, program: Path, tmp_path: Path) -> None:
    """Nothing is written into the template's tree only to be covered, and an empty seed leaves all as it is."""
    plain = make_template(tmp_path / "root", program, "plain")
    (tmp_path / "root/etc/machine-id").unlink()
    async with host.open_sandbox(plain) as box:
        assert "machine-id" not in {entry.path for entry in await box.files.list("/etc")}
    (tmp_path / "root/etc/machine-id").write_text("baked in\n")
    async with host.open_sandbox(plain, seed="", hostname="other") as box:
        assert await identity(box) == (b"baked in\n", Path(BOOT_ID).read_bytes())


@pytest.mark.parametrize("seed", [True, 1.5, b"x"])
async def test_a_seed_that_is_none_is_told(host: Host, template: Template, seed: object) -> None:
    """Before anything is made."""
    with pytest.raises(InvalidInput, match="seed"):
        async with host.open_sandbox(template, seed=seed):  # type: ignore[arg-type] # that is the point
            pass


async def test_a_runtime_that_cannot_fix_them_refuses_a_seed(host: Host, template: Template) -> None:
    """Nothing that was asked for is left out in silence. The level ``none`` has no fingerprint either."""
    open_host = await Host.local("process", "none", allow_unisolated=True)
    with pytest.raises(Refused, match="seed"):
        async with open_host.open_sandbox(template, seed=1):
            pass
    async with open_host.open_sandbox(template) as box:
        with pytest.raises(Refused, match="host's"):
            await box.fingerprint()
    await open_host.aclose()


async def test_a_template_that_changed_is_found_before_anybody_gets_it(
    host: Host, program: Path, tmp_path: Path, own_record: Path
) -> None:
    """A tree that was edited under its digest: its sandbox has a directory more to make, is ended, and is counted, also
    on the lasting record.
    """
    edited = make_template(tmp_path / "root", program, "edited")
    (tmp_path / "root/dev").rmdir()
    async with host.open_sandbox(edited):
        pass
    before = host.starts.unclean
    (tmp_path / "root/dev").mkdir()
    with pytest.raises(UncleanStart, match="inodes") as caught:
        async with host.open_sandbox(edited, id="changed"):
            pass
    assert caught.value.differences
    assert host.starts.unclean == before + 1
    record = noted()
    assert record.count == 1
    assert record.last is not None
    assert (record.last.runtime, record.last.template) == (host.runtime_name, edited.digest)
    assert "inodes" in "".join(record.last.differences)
    assert not any(life.spec.id == "changed" for life in host._factory.lives)


@pytest.mark.usefixtures("own_record")
async def test_the_full_form_finds_what_the_cheap_one_cannot(host: Host, program: Path, tmp_path: Path) -> None:
    """One byte of a template's file, with size and time of modification as before."""
    edited = make_template(tmp_path / "root", program, "byte")
    async with host.open_sandbox(edited, verify_start=True) as box:
        assert (await box.read("/usr/share/thing")).startswith(b"of")
    async with host.open_sandbox(edited, verify_start=True):
        pass
    thing = tmp_path / "root/usr/share/thing"
    with thing.open("r+") as opened:
        opened.write("Of")
    async with host.open_sandbox(edited):
        pass
    with pytest.raises(UncleanStart, match="/usr/share/thing") as caught:
        async with host.open_sandbox(edited, verify_start=True):
            pass
    assert all("/usr/share/thing" in line for line in caught.value.differences)
