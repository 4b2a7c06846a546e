"""A runtime without processes: its guest lives in this process, speaks the real protocol, and breaks it as scripted."""

from proofbox.runtimes.fake.faults import Faults
from proofbox.runtimes.fake.program import FakeCommand, Program
from proofbox.runtimes.fake.runtime import FakeRuntime

__all__ = ["FakeCommand", "FakeRuntime", "Faults", "Program"]
