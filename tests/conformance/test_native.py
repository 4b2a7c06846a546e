"""The conformance suite on the runtime ``native``."""

import pytest

from proofbox.testing.conformance import *  # noqa: F403 - this is how the author of a runtime uses it

RUNTIME = "native"
pytestmark = pytest.mark.container
