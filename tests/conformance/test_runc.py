"""The conformance suite on the runtime ``runc``."""

import pytest

from proofbox.testing.conformance import *  # noqa: F403 - this is how the author of a runtime uses it

RUNTIME = "runc"
pytestmark = pytest.mark.container
