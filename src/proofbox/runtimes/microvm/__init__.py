"""The ``microvm`` runtime: each sandbox in a virtual machine of its own, by QEMU."""

from proofbox.runtimes.microvm.runtime import MicrovmRuntime

__all__ = ["MicrovmRuntime"]
