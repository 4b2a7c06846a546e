"""The conformance suite on the runtime ``runsc``: a kernel of the sandbox's own, gVisor's."""

import pytest

from proofbox.testing.conformance import *  # noqa: F403 - this is how the author of a runtime uses it

RUNTIME = "runsc"
pytestmark = pytest.mark.container
