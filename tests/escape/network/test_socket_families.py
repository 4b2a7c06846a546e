"""Families of sockets that hardly anybody uses, which the kernel loads for the asking, each with a history of holes."""

from __future__ import annotations

from tests.escape.attempts import opening_socket
from tests.escape.conftest import Inside

ATTEMPTS = {
    "bluetooth": opening_socket(31, 3, 1),
    "CAN": opening_socket(29, 3, 1),
    "RDS": opening_socket(21, 5, 0),
    "TIPC": opening_socket(30, 1, 0),
    "AX.25": opening_socket(3, 3, 0),
    "KCM": opening_socket(41, 5, 0),
    "SMC": opening_socket(43, 1, 0),
    "LLC": opening_socket(26, 1, 0),
    "NFC": opening_socket(39, 3, 1),
    "X.25": opening_socket(9, 5, 0),
    "PPP": opening_socket(24, 1, 0),
    "QIPCRTR": opening_socket(42, 2, 0),
}


async def test_a_family_of_no_use_to_programs_is_refused(inside: Inside) -> None:
    """Before any code of it runs or is loaded."""
    await inside.expect(ATTEMPTS, "EAFNOSUPPORT", "ENOSYS", "EPERM")
