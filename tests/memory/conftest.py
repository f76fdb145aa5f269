from pathlib import Path

import pytest

from salience_memory import Embedder


@pytest.fixture(scope="session")
def minilm() -> Embedder:
    """The bundled sentence embedder; only tests marked `model` may ask for it."""
    from salience_models.weights import bundled

    return Embedder(Path(bundled.pull("all-minilm-l6-v2")), name="all-minilm-l6-v2", device="cpu")
