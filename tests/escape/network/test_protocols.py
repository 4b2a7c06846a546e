"""Protocols of a usual family that the kernel loads for the asking (DCCP: CVE-2017-6074; SCTP: CVE-2019-8956)."""

from __future__ import annotations

from tests.escape.attempts import opening_socket
from tests.escape.conftest import Inside

ATTEMPTS = {
    "SCTP": opening_socket(2, 1, 132),
    "SCTP by its type": opening_socket(2, 5, 0),
    "DCCP": opening_socket(2, 6, 33),
    "MPTCP": opening_socket(2, 1, 262),
    "L2TP": opening_socket(2, 2, 115),
    "UDP-Lite": opening_socket(2, 2, 136),
}


async def test_a_protocol_of_no_use_to_programs_is_refused(inside: Inside) -> None:
    """Before any code of it runs or is loaded."""
    await inside.expect(ATTEMPTS, "EAFNOSUPPORT", "ENOSYS", "EPERM")
