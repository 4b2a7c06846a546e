"""The conformance suite on the runtime ``crun``."""

import pytest

from proofbox.testing.conformance import *  # noqa: F403 - this is how the author of a runtime uses it

RUNTIME = "crun"
pytestmark = pytest.mark.container
