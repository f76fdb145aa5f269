"""Cutting causal and windowed attention into rectangles and triangles."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from salience_kernels.key_bias.band import Shape, band_pieces


def visible_pairs(n_rows: int, n_keys: int, offset: int | None, window: int | None) -> torch.Tensor:
    position = torch.arange(n_rows)[:, None] + (n_keys if offset is None else offset)
    index = torch.arange(n_keys)
    visible = index <= position
    if offset is not None and window is not None:
        visible = visible & (index > position - window)
    return visible


def count_covered(n_rows: int, n_keys: int, offset: int | None, window: int | None) -> torch.Tensor:
    covered = torch.zeros(n_rows, n_keys, dtype=torch.int64)
    for piece in band_pieces(n_rows, n_keys, offset, window):
        cells = covered[piece.row_start : piece.row_end, piece.key_start : piece.key_end]
        assert cells.numel() > 0
        ones = torch.ones_like(cells)
        if piece.shape is not Shape.FULL:
            assert cells.shape[0] == cells.shape[1]
            ones = ones.tril() if piece.shape is Shape.LOWER else ones.triu()
        cells += ones
    return covered


@given(
    n_rows=st.integers(1, 40),
    n_keys=st.integers(1, 40),
    offset=st.none() | st.integers(-20, 60),
    window=st.none() | st.integers(1, 50),
)
def test_pieces_cover_each_visible_pair_once(
    n_rows: int, n_keys: int, offset: int | None, window: int | None
) -> None:
    expected = visible_pairs(n_rows, n_keys, offset, window)
    assert torch.equal(count_covered(n_rows, n_keys, offset, window), expected.long())


def test_a_whole_causal_prompt_is_one_piece() -> None:
    assert len(band_pieces(4096, 4096, 0, None)) == 1


def test_a_window_costs_two_pieces_a_block() -> None:
    pieces = band_pieces(4096, 4096, 0, 512)
    assert len(pieces) == 8 + 7
    assert all(piece.shape is not Shape.FULL for piece in pieces)
