"""Getting more than one has: capabilities, ids, programs that raise them."""

from __future__ import annotations

import struct

import pytest
from tests.escape.conftest import Inside

CAPSET = """
import ctypes, struct
call('capset', ctypes.create_string_buffer(struct.pack('<II', 0x20080522, 0)), ctypes.create_string_buffer({}))
"""
ATTEMPTS = {
    "all capabilities": CAPSET.format("b'\\xff' * 24"),
    "CAP_SYS_ADMIN alone": CAPSET.format("struct.pack('<6I', 1 << 21, 1 << 21, 0, 0, 0, 0)"),
    "CAP_SYS_PTRACE to inherit": CAPSET.format("struct.pack('<6I', 0, 0, 1 << 19, 0, 0, 0)"),
    "CAP_NET_ADMIN, ambient": "call('prctl', 47, 2, 12, 0, 0)",
    "other rules for root": "call('prctl', 28, 0xff, 0, 0, 0)",
    "no_new_privs, taken back": "call('prctl', 38, 0, 0, 0, 0)",
    "a user that is not mapped": "os.setresuid(70000, 70000, 70000)",
    "a group that is not mapped": "os.setresgid(70000, 70000, 70000)",
    "a file given to a user that is not mapped": "open('/tmp/mine', 'w').close(); os.chown('/tmp/mine', 70000, 70000)",
    "another file behind /proc/self/exe": "call('prctl', 35, 13, os.open('/bin/sh', 0), 0, 0)",
}


async def test_nothing_is_gained_by_asking(inside: Inside) -> None:
    """Not by root either, who has a few capabilities inside and not one outside."""
    await inside.expect(ATTEMPTS, "EPERM", "EINVAL", "EACCES")


SHOW = "import os; print(os.geteuid(), next(l for l in open('/proc/self/status') if l.startswith('CapEff')).split()[1])"
FILE_CAPABILITIES = struct.pack("<5I", 0x0200_0001, 0xFFFF_FFFF, 0, 0xFFFF_FFFF, 0)
"""A security.capability attribute: all of them, permitted and effective."""


@pytest.mark.parametrize("how", ["a set-user-ID program of root's", "a program with file capabilities"])
async def test_a_program_that_would_raise_who_runs_it_does_not(inside: Inside, how: str) -> None:
    """Root inside can make such a program; a user who runs it stays a user, and root gets no capability back."""
    me = (await inside.box.run(["python3", "-I", "-S", "-c", SHOW], user=inside.user)).stdout
    program = f"/tmp/raise-{inside.user or 'root'}"
    try:
        await inside.box.run(["cp", "/usr/bin/python3", program])
        if how.startswith("a set"):
            await inside.box.run(["chmod", "4755", program])
        else:
            make = f"import os; os.setxattr({program!r}, 'security.capability', {FILE_CAPABILITIES!r})"
            made = await inside.box.run(["python3", "-c", make])
            if inside.own_kernel and not made.ok:
                pytest.skip("the kernel inside keeps no file capabilities")
            assert made.ok
        tried = await inside.box.run([program, "-I", "-S", "-c", SHOW], user=inside.user)
        assert tried.ok or how.endswith("file capabilities")  # the kernel may refuse to run it at all
        assert tried.stdout in (me, "")
    finally:
        await inside.box.run(["rm", "-f", program])


async def test_set_user_id_programs_of_the_template_have_no_effect(inside: Inside) -> None:
    """su, mount, passwd, sudo: whatever the host has installed."""
    text = """
import os, stat
found = [entry.path for place in ('/usr/bin', '/usr/sbin') for entry in os.scandir(place)
         if not entry.is_symlink() and entry.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
flags = os.statvfs('/usr/bin').f_flag
said = [len(found), flags & os.ST_NOSUID]
"""
    told = (await inside.outcomes({"programs": text}))["programs"]
    assert told.endswith(", 2]")
    assert not (await inside.box.run("mount -t tmpfs none /mnt", user=inside.user)).ok
    if inside.user is not None:
        assert (await inside.box.run("su -c 'id -u' root < /dev/null", user=inside.user)).stdout == ""
