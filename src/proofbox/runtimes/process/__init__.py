"""The ``process`` runtime: no isolation at all, for code that is your own."""

from proofbox.runtimes.process.runtime import ProcessRuntime

__all__ = ["ProcessRuntime"]
