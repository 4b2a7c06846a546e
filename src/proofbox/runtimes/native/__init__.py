"""The ``native`` runtime: containers made by our own launcher, as root or not, with nothing else installed."""

from proofbox.runtimes.native.runtime import NativeRuntime

__all__ = ["NativeRuntime"]
