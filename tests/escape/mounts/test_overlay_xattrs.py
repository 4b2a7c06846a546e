"""Attributes by which overlay file systems are led elsewhere."""

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
