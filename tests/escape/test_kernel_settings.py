"""Settings of the kernel, which are the whole machine's: what runs when a program crashes, and how it reboots."""

from __future__ import annotations

from tests.escape.conftest import Inside

SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/proc/mtrr",
    "/proc/acpi/wakeup",
    "/sys/kernel/uevent_helper",
    "/sys/power/state",
    "/sys/fs/cgroup/release_agent",
    "/sys/kernel/debug/tracing/tracing_on",
    "/sys/module/apparmor/parameters/enabled",
    "/sys/fs/selinux/enforce",
)
REFUSED = ("EROFS", "EACCES", "EPERM", "ENOENT", "ENOTDIR")
WAYS = {
    "written": "write(PATH, 'x')",
    "made writable": "os.chmod(PATH, 0o666)",
    "cut": "os.truncate(PATH, 0)",
    "renamed": "os.rename(PATH, PATH + '2')",
    "opened again by its descriptor": "fd = os.open(PATH, os.O_PATH); os.open(f'/proc/self/fd/{fd}', os.O_WRONLY)",
}
ATTEMPTS = {f"{path} {how}": "PATH = " + repr(path) + "\n" + way for path in SETTINGS for how, way in WAYS.items()}


async def test_the_kernels_settings_stay(inside: Inside) -> None:
    """Whichever way they are written."""
    await inside.expect(ATTEMPTS, *REFUSED)


SECRETS = {
    path: f"said = read({path!r}).strip('\\0') or 'empty'"
    for path in (
        "/proc/kcore",
        "/proc/keys",
        "/proc/timer_list",
        "/proc/sched_debug",
        "/proc/latency_stats",
        "/proc/slabinfo",
        "/proc/vmallocinfo",
        "/proc/pagetypeinfo",
        "/proc/kpageflags",
        "/proc/kpagecount",
        "/proc/interrupts",
        "/proc/kmsg",
        "/proc/cmdline",
        "/proc/pressure/cpu",
        "/proc/1/environ",
        "/sys/firmware/acpi/tables/DSDT",
        "/sys/kernel/security/lockdown",
        "/sys/kernel/notes",
    )
}


async def test_what_the_kernel_knows_of_others_cannot_be_read(inside: Inside) -> None:
    """Not there, not allowed, or empty."""
    await inside.expect(SECRETS, "empty", *REFUSED)


async def test_addresses_of_the_kernel_are_not_told(inside: Inside) -> None:
    """Where it lies in memory is what an exploit of it needs first."""
    look = "said = {line.split()[0] for line in read('/proc/kallsyms').splitlines()[:1000]} - {'0' * 16}"
    told = await inside.outcomes({"symbols": look})
    assert told["symbols"] in ("set()", *REFUSED)
