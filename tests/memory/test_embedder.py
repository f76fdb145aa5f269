import numpy as np
import pytest

from salience_memory import Embedder, EmbedderNotFound, TextRecall

TEXTS = [
    "The ferry to the island leaves at seven in the morning.",
    "Her invoice was paid on the third of May.",
    "Он живёт в Казани.",
]


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(EmbedderNotFound, match=r"got no modules\.json"):
        Embedder(tmp_path).embed(["text"])


def test_nothing_is_loaded_before_it_is_needed(tmp_path):
    embedder = Embedder(tmp_path / "absent")
    assert embedder.name == "absent"
    assert Embedder("organisation/model").name == "model"


def test_a_batch_size_below_one_is_refused():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        Embedder("model", batch_size=0)


@pytest.mark.model
def test_vectors_are_unit_float32_rows(minilm):
    vectors = minilm(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, minilm.dimension) == (3, 384)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)


@pytest.mark.model
def test_no_texts_give_no_rows(minilm):
    assert minilm.embed([]).shape == (0, 384)


@pytest.mark.model
def test_a_text_gets_the_same_vector_alone_and_in_a_batch(minilm):
    together = minilm.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(minilm.embed([text])[0], vector, atol=1e-5)


@pytest.mark.model
def test_a_paraphrase_is_nearest_to_its_text(minilm):
    results = TextRecall(minilm).rank("When does the boat depart?", TEXTS)
    assert results[0].item == 0
    assert results[0].breakdown.similarity > 0.4


@pytest.mark.model
def test_the_fingerprint_names_model_dimension_and_normalisation(minilm):
    assert minilm.fingerprint.startswith("all-minilm-l6-v2/384/l2/")
    assert Embedder(minilm.source, name=minilm.name, device="cpu").fingerprint == minilm.fingerprint
