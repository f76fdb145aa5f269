import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from salience_models.decoding.sampling import LogitAdjustment, Sampling

LOGITS = torch.tensor([1.5, -2.0, 0.0, 3.0, -0.5, 2.0])


def adjusted(sampling: Sampling, prompt: list[int], answer: list[int]) -> list[float]:
    logits = LOGITS.clone()
    LogitAdjustment(sampling, prompt, (5,)).apply(logits, answer)
    return logits.tolist()


def test_defaults_change_nothing_and_say_so() -> None:
    assert adjusted(Sampling(), [0, 1], [3, 3]) == LOGITS.tolist()
    assert not LogitAdjustment(Sampling(), [0, 1], (5,)).is_needed


@pytest.mark.parametrize(
    "settings",
    [
        {"logit_bias": {1: 2.0}},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.5},
        {"min_new_tokens": 2},
    ],
)
def test_each_setting_is_noticed(settings: dict[str, object]) -> None:
    assert LogitAdjustment(Sampling(**settings), [], (5,)).is_needed  # type: ignore[arg-type]


def test_bias_is_added_to_its_tokens() -> None:
    sampling = Sampling.model_validate({"logit_bias": {"1": 5, "3": -100.0}})
    assert adjusted(sampling, [], []) == [1.5, 3.0, 0.0, -97.0, -0.5, 2.0]


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_penalty_is_that_of_transformers(penalty: float) -> None:
    stock = RepetitionPenaltyLogitsProcessor(penalty)
    ids = [0, 1, 1, 2, 3]
    expected = stock(torch.tensor([ids]), LOGITS[None].clone())[0].tolist()  # type: ignore[arg-type]
    assert adjusted(Sampling(repetition_penalty=penalty), ids[:2], ids[2:]) == pytest.approx(expected)


def test_presence_and_frequency_penalties_count_the_answers_tokens_only() -> None:
    """OpenAI's: logit − count · frequency − (count > 0) · presence."""
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    assert adjusted(sampling, [1, 1, 1], [3, 3, 0]) == pytest.approx([0.75, -2.0, 0.0, 2.0, -0.5, 2.0])


def test_bias_comes_before_the_repetition_penalty() -> None:
    sampling = Sampling(logit_bias={1: 4.0}, repetition_penalty=2.0)
    assert adjusted(sampling, [1], [])[1] == pytest.approx(1.0)


def test_no_end_token_before_the_minimum() -> None:
    sampling = Sampling(min_new_tokens=2)
    assert adjusted(sampling, [5], [0])[5] == -torch.inf
    assert adjusted(sampling, [5], [0, 1])[5] == 2.0
