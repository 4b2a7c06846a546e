"""Overlays of one's own, which once gave file capabilities of one namespace to another (CVE-2021-3493)."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "an overlay of its own": "call('mount', b'none', b'/mnt', b'overlay', 0, b'lowerdir=/etc:/usr')",
    "one that can be written": """
for name in ('upper', 'work'):
    os.makedirs(f'/tmp/overlay{os.getuid()}/{name}', exist_ok=True)
top = f'/tmp/overlay{os.getuid()}'
call('mount', b'none', b'/mnt', b'overlay', 0, f'lowerdir=/usr,upperdir={top}/upper,workdir={top}/work'.encode())
""",
    "by the newer call": "call('fsopen', b'overlay', 0)",
}


async def test_no_overlay_is_mounted(inside: Inside) -> None:
    """Neither one to read nor one to write."""
    await inside.expect(ATTEMPTS, "EPERM")
