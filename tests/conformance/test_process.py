"""The conformance suite on the runtime ``process``."""

import pytest

from proofbox.testing.conformance import *  # noqa: F403 - this is how the author of a runtime uses it

RUNTIME = "process"
pytestmark = pytest.mark.container
