"""The conformance suite on the runtime ``microvm``: a machine for each sandbox that is opened."""

import pytest

from proofbox.model.template import Template
from proofbox.templates.store import open_store
from proofbox.testing.conformance import *  # noqa: F403 - this is how the author of a runtime uses it
from proofbox.testing.small import small_template

RUNTIME = "microvm"
pytestmark = pytest.mark.container


@pytest.fixture(scope="module")
def conformance_template() -> Template:
    """Some programs of this host: an image of all of its /usr would take minutes to make."""
    return small_template(open_store())
