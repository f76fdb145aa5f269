"""What tests of the harness share."""

import pytest

from salience import Harness, Steering
from salience_models import LanguageModel

STEERING = Steering.model_validate(
    {
        "method": "share_control",
        "share": 0.2,
        "max_total_share": 0.4,
        "depth": (0.5, 1.0),
        "query_scope": "question",
        "phase": "prefill",
    }
)


@pytest.fixture(scope="session")
def harness(tiny_lm: LanguageModel) -> Harness:
    """The tiny model under share control: the top memory gets a fifth of the attention in layer 1 of 2."""
    return Harness(tiny_lm, STEERING)
