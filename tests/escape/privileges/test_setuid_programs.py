"""Set-user-ID programs: those of the template, and those that root inside makes for others."""

from __future__ import annotations

from tests.escape.conftest import HOSTS_KERNEL, Inside
from tests.escape.privileges.raising import run_raising


async def test_a_set_user_id_program_of_roots_raises_nobody(inside: Inside) -> None:
    """Root inside can make such a program; a user who runs it stays a user."""
    me, made, tried = await run_raising(inside, lambda program: inside.box.run(["chmod", "4755", program]))
    assert made.ok
    assert tried.ok
    assert tried.stdout == me


PROGRAMS = """
import os, stat
found = [entry.path for place in ('/usr/bin', '/usr/sbin') for entry in os.scandir(place)
         if not entry.is_symlink() and entry.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)]
flags = os.statvfs('/usr/bin').f_flag
said = [len(found), flags & os.ST_NOSUID]
"""


@HOSTS_KERNEL
async def test_set_user_id_programs_of_the_template_have_no_effect(inside: Inside) -> None:
    """su, mount, passwd, sudo: whatever the host has installed."""
    told = (await inside.outcomes({"programs": PROGRAMS}))["programs"]
    assert told.endswith(", 2]")
    assert not (await inside.box.run("mount -t tmpfs none /mnt", user=inside.user)).ok
    if inside.user is not None:
        assert (await inside.box.run("su -c 'id -u' root < /dev/null", user=inside.user)).stdout == ""
