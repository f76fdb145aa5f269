import re

import pytest
import torch

from salience_kernels import (
    apply_constraint_mask,
    intersect_masks,
    pack_allowed,
)
from salience_kernels.constraint_mask import AllowedBits, BannedIds

NEG = float("-inf")


def banned(*ids):
    return BannedIds(torch.tensor(ids, dtype=torch.int32))


def random_masks(n_vocab, rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for row in range(rows):
        allowed = torch.rand(n_vocab, generator=generator) < 0.5
        ids = torch.nonzero(~allowed).flatten().to(torch.int32)
        masks.append([None, AllowedBits(pack_allowed(allowed)), BannedIds(ids)][row % 3])
    return masks


@pytest.mark.parametrize("n_vocab", [1, 31, 32, 33, 127])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batched_masks_as_the_reference_does(n_vocab, dtype):
    masks = random_masks(n_vocab, 7)
    logits = torch.randn(7, n_vocab).to(dtype)
    expected, actual = logits.clone(), logits.clone()
    empty = apply_constraint_mask(expected, masks, impl="reference")
    assert torch.equal(apply_constraint_mask(actual, masks), empty)
    assert torch.equal(actual, expected)
    assert torch.equal(actual[::3], logits[::3])


def test_a_row_that_lost_every_token_is_reported_and_others_are_not():
    logits = torch.zeros(5, 3)
    logits[1, 0] = logits[4] = NEG
    masks = [
        banned(0, 1, 2),
        banned(1, 2),
        AllowedBits(torch.tensor([0], dtype=torch.int32)),
        banned(1),
        None,
    ]
    for impl in ("reference", "batched"):
        assert apply_constraint_mask(logits.clone(), masks, impl=impl).tolist() == [
            True,
            True,
            True,
            False,
            False,
        ]


def test_rows_of_a_view_are_masked_in_place():
    wide = torch.zeros(4, 10)
    apply_constraint_mask(
        wide[::2, 1:9], [banned(0), AllowedBits(torch.tensor([0b01111111], dtype=torch.int32))]
    )
    assert wide[0].tolist() == [0, NEG, *[0] * 8]
    assert wide[2].tolist() == [*[0] * 8, NEG, 0]
    assert wide[1::2].abs().sum() == 0


def test_no_masks_and_empty_masks_change_nothing():
    logits = torch.randn(2, 5)
    kept = logits.clone()
    assert not apply_constraint_mask(logits, [None, None]).any()
    assert not apply_constraint_mask(logits, [banned(), None]).any()
    assert torch.equal(logits, kept)


@pytest.mark.parametrize("n_vocab", [1, 32, 63, 100])
def test_packed_bits_unpack_to_what_was_packed(n_vocab):
    allowed = torch.rand(n_vocab) < 0.5
    allowed[-1] = True
    assert torch.equal(AllowedBits(pack_allowed(allowed)).unpack(n_vocab), allowed)


def test_the_last_bit_of_a_word_is_its_sign():
    allowed = torch.zeros(64, dtype=torch.bool)
    allowed[31] = True
    assert pack_allowed(allowed).tolist() == [-(2**31), 0]


def test_intersections_allow_what_both_allow():
    n_vocab = 75
    for first in random_masks(n_vocab, 3):
        for second in random_masks(n_vocab, 3, seed=1):
            both = intersect_masks(first, second, n_vocab)
            everything = torch.ones(n_vocab, dtype=torch.bool)
            expected = everything
            for mask in (first, second):
                expected = expected & (everything if mask is None else mask.unpack(n_vocab))
            assert torch.equal(everything if both is None else both.unpack(n_vocab), expected)


def test_ids_of_an_intersection_are_ascending_and_single():
    both = intersect_masks(banned(1, 5, 9), banned(2, 5), 10)
    assert isinstance(both, BannedIds)
    assert both.ids.tolist() == [1, 2, 5, 9]
    assert both.ids.dtype == torch.int32


@pytest.mark.parametrize(
    ("logits", "masks", "message"),
    [
        (torch.zeros(3), [None], "logits must be floating [batch, vocab], got torch.float32 [3]"),
        (
            torch.zeros(1, 3, dtype=torch.int64),
            [None],
            "logits must be floating [batch, vocab], got torch.int64",
        ),
        (torch.zeros(2, 3), [None], "masks must hold one mask a row, 2, got 1"),
        (
            torch.zeros(1, 33),
            [AllowedBits(torch.zeros(1, dtype=torch.int32))],
            "masks[0] must hold 2 words for 33 tokens, got 1",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(logits, masks, message, unchecked_types):
    with pytest.raises(ValueError, match=re.escape(message)):
        apply_constraint_mask(logits, masks)


def test_an_unknown_implementation_is_refused_with_the_names():
    with pytest.raises(ValueError, match="impl must be one of reference, batched, auto, got 'triton'"):
        apply_constraint_mask(torch.zeros(1, 4), [None], impl="triton")
