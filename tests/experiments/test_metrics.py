"""Published metrics: what they count, and the reference's faults, pinned and mended."""

import pytest

from salience_experiments.metrics import (
    best_subspan_em,
    ends_in_loop,
    first_line,
    normalize_answer,
    value_hit,
)


def test_normalizing_drops_case_punctuation_articles_and_spaces():
    assert normalize_answer(" The  U.S.A., an\tApple -- and a Pear! ") == "usa apple and pear"


def test_normalizing_keeps_articles_inside_words_and_non_ascii():
    assert normalize_answer("Theatre, Ångström, “Ana”") == "theatre ångström “ana”"


def test_any_gold_inside_the_answer_is_a_hit():
    assert best_subspan_em("It was Wilhelm Röntgen, in 1901.", ["Marie Curie", "Wilhelm Röntgen"]) == 1.0


def test_answer_inside_a_gold_is_a_miss():
    assert best_subspan_em("Röntgen", ["Wilhelm Röntgen"]) == 0.0


def test_gold_is_matched_inside_longer_words():
    assert best_subspan_em("in 1914", ["14"]) == 1.0


@pytest.mark.parametrize("gold", ["The", "*", "?!", ""])
def test_gold_that_normalizes_to_nothing_scores_one_as_in_the_reference(gold: str):
    assert best_subspan_em("nonsense", [gold]) == 1.0
    assert best_subspan_em("", [gold]) == 1.0


@pytest.mark.parametrize("gold", ["The", "*", "?!", ""])
def test_gold_that_normalizes_to_nothing_can_be_ignored(gold: str):
    assert best_subspan_em("nonsense", [gold], ignore_empty_golds=True) == 0.0
    assert best_subspan_em("a pear", [gold, "pear"], ignore_empty_golds=True) == 1.0


def test_only_the_first_line_counts():
    assert first_line(" Paris \nDocument [1] London") == "Paris"


def test_answer_that_begins_with_a_newline_is_emptied_as_in_the_reference():
    assert first_line("\nParis") == ""
    assert first_line("\n Paris\nLondon", strip_first=True) == "Paris"


def test_value_counts_anywhere_in_any_case():
    assert value_hit('\n{"k": "AB-12"}', "ab-12") == 1.0
    assert value_hit("ab-1", "ab-12") == 0.0


@pytest.mark.parametrize(
    ("answer", "loops"),
    [
        ("She lives in Oslo.", False),
        ("no, no, no", False),
        ("a a a a a a", True),
        ("Well: the code is 7. the code is 7. the code is 7.", True),
        ("Well: the code is 7. the code is 7. the code is 7. the code", True),  # cut off at the limit
        ("the code is 7. the code is 7. So there.", False),
        ("the code is 7. the code is 7. the code is 7. So there.", False),  # it found its way out
        ("", False),
    ],
)
def test_an_answer_that_ends_by_repeating_itself_is_a_loop(answer, loops):
    assert ends_in_loop(answer) is loops
