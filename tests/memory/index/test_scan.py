import numpy as np
import pytest

from salience_memory.index.scan import SelectorScan, UnmaskedScan, gpu_scan
from salience_memory.vectors import import_faiss

DIMENSION = 32


def unit(count, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((count, DIMENSION)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def unmasked():
    """On a CPU index: the limits it works around are those of the GPU's."""
    return UnmaskedScan(import_faiss().IndexFlatIP(DIMENSION), error=1e-6)


KINDS = [
    pytest.param(lambda: SelectorScan(DIMENSION), id="selector"),
    pytest.param(unmasked, id="unmasked"),
    pytest.param(lambda: gpu_scan(DIMENSION), id="cuda", marks=pytest.mark.gpu),
]


@pytest.fixture(params=KINDS)
def scan(request):
    return request.param()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr("salience_memory.index.scan._SEGMENT_ROWS", 1000)
    monkeypatch.setattr("salience_memory.index.scan._ALL_FROM_EACH", 20)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 1.0])
def test_nothing_outside_the_mask_and_nothing_left_out_above_the_ceiling(scan, share):
    vectors, draw = unit(5_500), np.random.default_rng(1)
    scan.fit(vectors)
    for query in unit(8, seed=2):
        allowed = draw.random(len(vectors)) < share
        rows, ceiling = scan.nearest(query, allowed, 50)
        assert allowed[rows].all()
        assert len(set(rows.tolist())) == len(rows)
        exact = vectors @ query
        left_out = allowed.copy()
        left_out[rows] = False
        assert not left_out.any() or exact[left_out].max() <= ceiling
        reaching = scan.reaching(query, allowed, 0.3)
        assert allowed[reaching].all()
        assert set(np.flatnonzero(allowed & (exact >= 0.3))) <= set(reaching.tolist())


def test_the_nearest_all_in_one_segment_are_not_taken_for_fewer_than_there_are():
    """Each segment gives half of what is asked for; the ceiling says that this one had more."""
    scan, query = SelectorScan(DIMENSION), unit(1)[0]
    near = query + 0.1 * unit(100, seed=3)
    vectors = np.concatenate(
        [unit(2_000), near / np.linalg.norm(near, axis=1, keepdims=True), unit(900, seed=4)]
    )
    scan.fit(vectors)
    everything, exact = np.ones(len(vectors), dtype=bool), vectors @ query
    rows, ceiling = scan.nearest(query, everything, 60)
    assert len(set(rows.tolist()) & set(range(2_000, 2_100))) == 30
    assert ceiling >= np.sort(exact)[-31]


def test_one_allowed_row_is_not_hidden_behind_near_duplicates_that_are_not(scan):
    query = unit(1)[0]
    vectors = np.concatenate([np.tile(query, (4_000, 1)), -query[None]])
    scan.fit(vectors)
    allowed = np.zeros(len(vectors), dtype=bool)
    allowed[-1] = True
    rows, ceiling = scan.nearest(query, allowed, 5)
    assert rows.tolist() == [4_000] or ceiling >= -1.0
    assert 4_000 in scan.reaching(query, allowed, -1.0)


def test_appended_rows_are_found_and_erased_ones_are_not_where_the_index_can(scan):
    vectors = unit(2_500)
    scan.fit(vectors[:2_000])
    everything = np.ones(len(vectors), dtype=bool)
    if not scan.append(vectors[2_000:]):
        scan.fit(vectors)
    rows, _ = scan.nearest(vectors[2_400], everything, 10)
    assert 2_400 in rows
    vectors[2_400] = 0.0
    if not scan.erase(np.array([2_400])):
        scan.fit(vectors)
    allowed = everything
    reaching = scan.reaching(unit(2_500)[2_400], allowed, 0.9)
    assert isinstance(scan, UnmaskedScan) or 2_400 not in reaching


def test_a_component_beyond_the_codes_asks_for_all_vectors_again():
    scan = SelectorScan(DIMENSION)
    scan.fit(unit(100))
    assert not scan.append(np.eye(DIMENSION, dtype=np.float32)[:1])


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(import_faiss(), "get_num_gpus", lambda: 0, raising=False)
    with pytest.raises(Exception, match="needs faiss-gpu and a CUDA device"):
        gpu_scan(DIMENSION)
