"""Why no sandbox could be made on this host: the causes that are known, each with what mends it."""

from __future__ import annotations

import platform
import re
import resource
from pathlib import Path
from typing import Final

from proofbox.host.apart import NAMESPACES

MESSAGE_MOST: Final = 400
"""Characters of what failed that are told: some runtimes say much."""

_NO_THREAD: Final = "can't start new thread"

_CAUSES: Final = (
    (
        r"session keyring.*[Qq]uota",
        "all keys that this user may have are in use",
        "sysctl -w kernel.keys.maxkeys=2000 kernel.keys.maxbytes=200000",
    ),
    (
        r"set limit processes",
        "this user may have fewer processes than the sandbox is to have",
        "ulimit -u unlimited (LimitNPROC= at systemd), or a lower limit `processes`",
    ),
    (
        r"start .*(Exec format error|cannot execute binary)",
        "the guest program is none for this machine",
        "run guest/build.sh here, or name one that was built for it with PROOFBOX_GUEST",
    ),
    (
        r"start .*Permission denied",
        "the guest program may not be run where it lies, most likely on a file system that is mounted noexec",
        "name a copy of it elsewhere with PROOFBOX_GUEST",
    ),
    (
        r"seccomp",
        "no filter of system calls can be installed",
        "needs a kernel with CONFIG_SECCOMP_FILTER; a container has to be allowed seccomp(2)",
    ),
    (
        r"mount.*proc\b.*(not permitted|denied)",
        "a new /proc cannot be mounted because this one is partly masked, as in a container",
        "docker run --security-opt systempaths=unconfined, or procMount: Unmasked at Kubernetes",
    ),
    (
        r"overlay.*No such device",
        "this kernel has no overlay file system",
        "modprobe overlay (CONFIG_OVERLAY_FS)",
    ),
    (
        r"overlay.*Invalid argument",
        "an overlay cannot lie on the file system of the template, most likely an overlay itself, as in a container",
        "set PROOFBOX_STATE and PROOFBOX_HOME to directories on a volume",
    ),
    (
        r"overlay.*not permitted",
        "an overlay cannot be mounted in a user namespace",
        "needs Linux 5.11 or newer",
    ),
    (
        r"Read-only file system",
        "state is kept on a file system that is mounted read-only",
        "set PROOFBOX_STATE to a directory that can be written",
    ),
    (
        r"No space left on device|[Qq]uota exceeded",
        "the file system on which state is kept is full",
        "free some space or inodes there, or set PROOFBOX_STATE to a directory elsewhere",
    ),
    (
        rf"Resource temporarily unavailable|{_NO_THREAD}",
        "this user may have no more processes",
        "ulimit -u unlimited (TasksMax= at systemd, --pids-limit at docker), or end some",
    ),
    (
        r"Function not implemented",
        f"Linux {platform.release()}, or a container's filter of system calls, lacks a call of that step",
        "needs Linux 5.12 or newer; a container has to be allowed it",
    ),
)
"""What is looked for in the message, in this order; what it means; what mends it."""


def is_threadless(error: BaseException) -> bool:
    """Whether it is what Python raises where this process may not have one more thread."""
    return isinstance(error, RuntimeError) and _NO_THREAD in str(error)


def explain(message: str, root: Path = Path("/")) -> tuple[str, str]:
    """What is missing and its remedy, from what a failed step says and from the host's own switches.

    The remedy is empty where no cause is known. ``root`` stands for "/" in tests.
    """
    message = " ".join(re.sub(r"^sandbox \S+: ", "", message).split()).replace(": :", ":")[:MESSAGE_MOST]
    found = _namespaces(message, root) or _files(message) or _known(message)
    return (f"{found[0]}: {message}", found[1]) if found else (message, "")


def _known(message: str) -> tuple[str, str] | None:
    return next(((what, remedy) for sign, what, remedy in _CAUSES if re.search(sign, message)), None)


def _files(message: str) -> tuple[str, str] | None:
    if not re.search(r"Too many open files|No file descriptors", message):
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may open {soft} files only (at most {hard})", "ulimit -n 65536 (LimitNOFILE= at systemd)"


def _namespaces(message: str, root: Path) -> tuple[str, str] | None:
    """The switches that take namespaces away. A file that is not there is a switch that this kernel lacks."""
    if not re.search(r"clone|namespace|unshare|uid_map|gid_map|private", message):
        return None
    if "No space left on device" in message:
        for kind in NAMESPACES:
            if _switch(root, f"user/max_{kind}_namespaces") == "0":
                return f"{kind} namespaces are limited to 0", f"sysctl -w user.max_{kind}_namespaces=65536"
        return (
            "a limit on namespaces is used up",
            "sysctl -w user.max_user_namespaces=65536, and the like",
        )
    if not re.search(r"not permitted|denied", message):
        return None
    if _switch(root, "kernel/unprivileged_userns_clone") == "0":
        return "user namespaces are off for everybody but root", "sysctl -w kernel.unprivileged_userns_clone=1"
    if _switch(root, "kernel/apparmor_restrict_unprivileged_userns") == "1":
        return (
            "AppArmor takes capabilities away in user namespaces of programs without a profile (Ubuntu since 23.10)",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or run as root",
        )
    return (
        "namespaces are refused, most likely by a container's filter of system calls, or because this is a chroot",
        "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined; no chroot",
    )


def _switch(root: Path, name: str) -> str:
    try:
        return (root / "proc/sys" / name).read_text().strip()
    except OSError:
        return ""
