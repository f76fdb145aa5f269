"""A model as the registrar's judge: two words, whatever it is asked."""

from typing import Any

import pytest

from salience import Harness
from salience.judge import model_judge


@pytest.mark.parametrize("word", ["yes", "no"])
def test_the_likelier_word_is_the_verdict(harness: Harness, word: str):
    lm: Any = harness.lm
    token = lm.tokenizer(word, add_special_tokens=False)["input_ids"][0]

    def prefer(_: object, __: object, output: Any) -> None:
        output.logits[..., token] += 100.0

    hook = lm.model.register_forward_hook(prefer)
    try:
        assert model_judge(lm)('Is it a lasting fact? "I like tea"') == (word == "yes")
    finally:
        hook.remove()
