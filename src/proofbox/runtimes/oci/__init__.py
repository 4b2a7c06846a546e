"""Container runtimes that others wrote and audit, crun and runc, driven through one bundle."""

from __future__ import annotations

from proofbox.host.owner import Owner
from proofbox.runtimes.oci.runtime import OciRuntime

__all__ = ["OciRuntime", "crun", "runc"]


def crun(owner: Owner) -> OciRuntime:
    """The runtime named ``crun``."""
    return OciRuntime(owner, "crun")


def runc(owner: Owner) -> OciRuntime:
    """The runtime named ``runc``."""
    return OciRuntime(owner, "runc")
