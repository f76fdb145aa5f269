"""What tests of the harness share."""

import pytest

from salience import Harness
from salience_models import LanguageModel


@pytest.fixture(scope="session")
def harness(tiny_lm: LanguageModel) -> Harness:
    """The tiny model under the default steering."""
    return Harness(tiny_lm)
