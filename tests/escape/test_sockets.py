"""Kinds of sockets: each family is kernel code, and some reach the host or its network."""

from __future__ import annotations

from tests.escape.conftest import Inside

NET = """
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
"""
SOCKET = "import socket; socket.socket({}, {}, {})"
REFUSED = {
    "packets, raw": SOCKET.format(17, 3, 0x300),
    "packets, cooked": SOCKET.format(17, 2, 0x300),
    "the kernel's device events": SOCKET.format(16, 3, 15),
    "audit": SOCKET.format(16, 3, 9),
    "netfilter": SOCKET.format(16, 3, 12),
    "process events": SOCKET.format(16, 3, 11),
    "generic netlink": SOCKET.format(16, 3, 16),
    "IPsec keys": SOCKET.format(15, 3, 2),
    "the machine's host": SOCKET.format(40, 1, 0),
    "the kernel's ciphers": SOCKET.format(38, 5, 0),
    "bluetooth": SOCKET.format(31, 3, 1),
    "CAN": SOCKET.format(29, 3, 1),
    "RDS": SOCKET.format(21, 5, 0),
    "TIPC": SOCKET.format(30, 1, 0),
    "AX.25": SOCKET.format(3, 3, 0),
    "express data path": SOCKET.format(44, 3, 0),
    "KCM": SOCKET.format(41, 5, 0),
    "SMC": SOCKET.format(43, 1, 0),
    "SCTP": SOCKET.format(2, 1, 132),
    "SCTP by its type": SOCKET.format(2, 5, 0),
    "DCCP": SOCKET.format(2, 6, 33),
    "MPTCP": SOCKET.format(2, 1, 262),
    "L2TP": SOCKET.format(2, 2, 115),
    "UDP-Lite": SOCKET.format(2, 2, 136),
    "raw IP": SOCKET.format(2, 3, 255),
    "raw ICMP": SOCKET.format(2, 3, 1),
    "raw ICMPv6": SOCKET.format(10, 3, 58),
}


async def test_a_family_of_no_use_to_programs_is_refused(inside: Inside) -> None:
    """Before any code of it runs or is loaded; of the rest only what a user may have."""
    await inside.expect(REFUSED, "EAFNOSUPPORT", "ENOSYS", "EPERM")


CHANGES = {
    "an address for an interface": NET
    + "fcntl.ioctl(s, 0x8916, struct.pack('16sHH4s8x', b'lo', 2, 0, bytes([10, 0, 0, 1])))",
    "an interface, up": NET + "fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0))",
    "a route": NET + "fcntl.ioctl(s, 0x890b, bytes(120))",
    "a new interface": """
import socket, struct
s = socket.socket(16, 3, 0)
body = struct.pack('BBHiII', 0, 0, 0, 0, 0, 0) + struct.pack('HH8s', 12, 3, b'dummy9')
s.send(struct.pack('IHHII', 16 + len(body), 16, 0x605, 1, 0) + body)
error = struct.unpack_from('i', s.recv(4096), 16)[0]
raise OSError(-error, '')
""",
    "a packet filter": NET + "s.setsockopt(0, 64, bytes(96))",
    "its table of filters": NET + "s.getsockopt(0, 64, 84)",
    "a mark that routes by": NET + "s.setsockopt(socket.SOL_SOCKET, 36, 1)",
    "another's address": NET + "s.setsockopt(0, 19, 1)",
    "a tunnel": "os.open('/dev/net/tun', os.O_RDWR)",
}


async def test_the_network_cannot_be_changed(inside: Inside) -> None:
    """Loopback is what there is, and what there stays."""
    await inside.expect(CHANGES, "EPERM", "EACCES", "ENOENT", "ENOPROTOOPT")
    assert (await inside.box.run("tail -n +3 /proc/net/dev | cut -d: -f1")).stdout.split() == ["lo"]


UDP = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
HOST = {
    "its abstract socket": "import socket; socket.socket(socket.AF_UNIX).connect('\\0' + GIVEN['abstract'])",
    "a datagram to it": UDP.replace("AF_INET", "AF_UNIX") + "s.sendto(b'x', '\\0' + GIVEN['abstract'])",
    "its loopback": "import socket; socket.create_connection(('127.0.0.1', GIVEN['port']), 5)",
    "its loopback, by another name": "import socket; socket.create_connection(('::ffff:127.0.0.1', GIVEN['port']), 5)",
    "any address": "import socket; socket.create_connection(('0.0.0.0', GIVEN['port']), 5)",
    "a metadata service": "import socket; socket.create_connection(('169.254.169.254', 80), 5)",
    "a name server": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    "everybody": NET
    + """
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.sendto(b'x', ('255.255.255.255', 9))
""",
    "a group": "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.1', 9))",
    "a link-local neighbour": UDP.replace("AF_INET", "AF_INET6") + "s.sendto(b'x', ('fe80::1', 9, 0, 1))",
}


async def test_nobody_outside_is_reached(inside: Inside) -> None:
    """Neither the witness, who listens, nor anything beyond."""
    await inside.expect(HOST, "ECONNREFUSED", "ENETUNREACH", "EADDRNOTAVAIL", "EHOSTUNREACH")
