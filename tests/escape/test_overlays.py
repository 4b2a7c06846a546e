"""Attributes by which overlay file systems are led elsewhere, or into raising privileges (CVE-2021-3493, 2023-0386)."""

from __future__ import annotations

from tests.escape.conftest import Inside

SET = "path = f'/tmp/o{{os.getuid()}}'; os.makedirs(path, exist_ok=True); os.setxattr(path, {!r}, {!r})"
REFUSED = {
    f"trusted.overlay.{name}": SET.format(f"trusted.overlay.{name}", value)
    for name, value in {"redirect": b"/../..", "opaque": b"y", "metacopy": b"", "origin": bytes(30)}.items()
}


async def test_attributes_of_the_kernels_own_cannot_be_set(inside: Inside) -> None:
    """They belong to who made the mount."""
    await inside.expect(REFUSED, "EPERM", "EOPNOTSUPP")


LED = {
    f"user.overlay.{name}": f"""
path = f'/tmp/led{{os.getuid()}}-{name}'
os.makedirs(path, exist_ok=True)
try:
    os.setxattr(path, 'user.overlay.{name}', {value!r})
except OSError:
    pass
said = sorted(os.listdir(path)) == [] and not os.path.exists(path + GIVEN['file'])
"""
    for name, value in {"redirect": b"/../../../..", "opaque": b"y", "metacopy": b"", "impure": b"y"}.items()
}


async def test_a_users_attributes_lead_nowhere(inside: Inside) -> None:
    """Native overlays are mounted with the user's attributes: those that the user sets are not the mount's own."""
    await inside.expect(LED, "True")


async def test_what_comes_up_from_below_keeps_its_owner(inside: Inside) -> None:
    """A file that is copied up because root changes it has the owner and the mode that it had."""
    async with inside.open_box() as box:
        before = await box.run("stat -c '%u %g %a' /usr/bin/env /usr/bin/passwd")
        await box.run("touch /usr/bin/env /usr/bin/passwd")
        after = await box.run("stat -c '%u %g %a' /usr/bin/env /usr/bin/passwd")
        assert after.stdout == before.stdout
