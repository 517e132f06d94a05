"""What tests of formats share: a registry over HTTP."""

import pytest

from tests.formats.registry_server import serving


@pytest.fixture(scope="module")
def served():
    with serving() as registry:
        yield registry


@pytest.fixture
def registry(served):
    """The registry, empty again."""
    served.__init__()
    return served
