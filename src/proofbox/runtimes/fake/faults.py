"""What goes wrong in a scripted sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lie = Literal[
    "malformed",
    "oversized",
    "unknown_type",
    "end_twice",
    "data_after_end",
    "started_twice",
    "unknown_stream",
    "other_stream",
    "contradiction",
    "credit_abuse",
    "credit_overflow",
    "flood",
]
"""How a guest leaves the protocol in answer to a command.

malformed        the END has fields that END does not have
oversized        a frame says that it is a mebibyte long
unknown_type     a frame of a type that no guest sends
end_twice        a second END for the same command
data_after_end   output after the END
started_twice    a second STARTED
unknown_stream   output for a command that was never asked for
other_stream     the END has the number of the next command
contradiction    the END counts fewer bytes than were sent
credit_abuse     more output than it has credit for
credit_overflow  a credit for stdin above 2^31 in sum
flood            output without end and without regard for credit
"""


@dataclass(frozen=True, slots=True)
class Faults:
    """One sandbox's script. Without arguments nothing goes wrong. Seconds.

    refuse          create raises ``Refused`` with this sentence
    create_hangs    create never returns (it can be cancelled)
    create_fails    create raises ``CreateFailed`` at this step
    boot_delay      so long passes before the guest answers HELLO
    boot_fails      the guest answers HELLO with FATAL and this step, and is gone
    ping            how a PING is met: with nothing, with the end of the connection, with an answer to another one
    version         the version in the guest's HELLO
    at              the command (counted from 1, file operations and connections too) at which the next ones happen
    silent          that command is never answered
    lost            the connection ends in that command: after STARTED and some output, or in the middle of a frame
    late            a deadline is ignored for so long; the END says that the program exited
    lie             that command is answered with a lie
    oom_kills       what the kernel's counter shows after that command
    denials         as ``oom_kills``, forks that were refused
    tree            archive and END's result with which every directory that is read is answered
    destroy_fails   so many times destroy raises ``OSError`` before it works
    """

    refuse: str = ""
    create_hangs: bool = False
    create_fails: str = ""
    boot_delay: float = 0.0
    boot_fails: str = ""
    ping: Literal["", "silent", "lost", "lie"] = ""
    version: int = 1
    at: int = 1
    silent: bool = False
    lost: Literal["", "command", "frame"] = ""
    late: float = 0.0
    lie: Lie | None = None
    oom_kills: int = 0
    denials: int = 0
    tree: tuple[bytes, bytes] | None = None
    destroy_fails: int = 0
