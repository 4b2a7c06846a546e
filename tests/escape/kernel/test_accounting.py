"""acct(2): the kernel writes into a file, for everybody that ends on the machine."""

from __future__ import annotations

from tests.escape.conftest import Inside

ATTEMPTS = {
    "into a file of its own": "path = f'/tmp/a{os.getuid()}'; open(path, 'w').close(); call('acct', path.encode())",
    "into a device": "call('acct', b'/dev/null')",
    "not any more": "call('acct', 0)",
}


async def test_the_kernel_keeps_no_account_for_a_sandbox(inside: Inside) -> None:
    """Nor stops the host's."""
    await inside.expect(ATTEMPTS, "EPERM")
