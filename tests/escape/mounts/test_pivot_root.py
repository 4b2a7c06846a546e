"""pivot_root(2): another root, below which the old one lies."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "another root": "call('pivot_root', b'/', b'/mnt')",
    "the same root over itself": "os.chdir('/'); call('pivot_root', b'.', b'.')",
    "a root of one's own": """
os.makedirs('/tmp/pivot/old', exist_ok=True)
call('pivot_root', b'/tmp/pivot', b'/tmp/pivot/old')
""",
}


async def test_the_root_is_not_moved(inside: Inside) -> None:
    """There is the one that the sandbox started with."""
    await inside.expect(ATTEMPTS, "EPERM")
