"""Runtimes that others wrote and audit, driven through one bundle: crun, runc, runsc (gVisor), others by path."""

from __future__ import annotations

from proofbox.host.owner import Owner
from proofbox.runtimes.oci.memory import Runsc
from proofbox.runtimes.oci.runtime import OciRuntime

__all__ = ["OciRuntime", "crun", "runc", "runsc"]


def crun(owner: Owner) -> OciRuntime:
    """The runtime named ``crun``."""
    return OciRuntime(owner, "crun")


def runc(owner: Owner) -> OciRuntime:
    """The runtime named ``runc``."""
    return OciRuntime(owner, "runc")


def runsc(owner: Owner) -> OciRuntime:
    """The runtime named ``runsc``."""
    return Runsc(owner, "runsc")
