import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from salience_models.decoding.decode_state import Request
from salience_models.decoding.generation import StreamEvent, generate, stream
from salience_models.decoding.sampling import Sampling
from salience_models.errors import NoTokenizer, PromptTooLong
from salience_models.language_model import LanguageModel
from salience_models.steering.bias_plan import SteeringMethod

Factory = Callable[..., Any]

PROMPT = (40, 41, 42)


@pytest.fixture
def speak(language_model: Factory, byte_tokenizer: PreTrainedTokenizerBase) -> Callable[[str], LanguageModel]:
    """`speak(text)`: a model that answers `PROMPT` with the bytes of `text`, then with its end token, 2."""

    def build(text: str) -> LanguageModel:
        lm = language_model("llama")
        script = [*byte_tokenizer(text, add_special_tokens=False)["input_ids"], 2]

        def dictate(_: object, __: object, kwargs: dict[str, Any], output: Any) -> None:
            for row, position in enumerate(kwargs["position_ids"][:, -1].tolist()):
                output.logits[row, -1, script[min(position + 1 - len(PROMPT), len(script) - 1)]] += 1000.0

        other = LanguageModel(copy.deepcopy(lm.model), byte_tokenizer)
        other.model.register_forward_hook(dictate, with_kwargs=True)
        return other

    return build


def test_greedy_answer_is_that_of_transformers_generate(
    tiny_name: str, language_model: Factory, stock_model: Factory, draw_tokens: Factory
) -> None:
    prompts = [draw_tokens(24), draw_tokens(17, seed=1)]
    answers = generate(
        language_model(tiny_name),
        [Request(prompt) for prompt in prompts],
        Sampling(max_new_tokens=12, ignore_eos=True),
    )
    for prompt, answer in zip(prompts, answers, strict=True):
        stock = stock_model(tiny_name).generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
        assert answer.token_ids == tuple(stock[0, len(prompt) :].tolist())
        assert answer.finish_reason == "length"


@pytest.mark.parametrize("method", ["logit_bias", "target_share", "target_share_paper"])
def test_steered_answer_is_that_of_a_naive_loop(
    method: str,
    language_model: Factory,
    stock_model: Factory,
    dense_logits: Factory,
    draw_tokens: Factory,
    plan_of: Factory,
) -> None:
    """Every step a full dense pass; the log-probabilities too."""
    request = Request(draw_tokens(32), plan_of(method))
    (answer,) = generate(language_model("gemma3"), [request], Sampling(max_new_tokens=6, ignore_eos=True))
    tokens: list[int] = []
    for logprob in answer.logprobs:
        logits = dense_logits(stock_model("gemma3"), (*request.token_ids, *tokens), request.plan, 32)[-1]
        tokens.append(int(logits.argmax()))
        assert logprob == pytest.approx(float(logits.log_softmax(-1).max()), abs=1e-4)
    assert answer.token_ids == tuple(tokens)


def mixed_batch(draw_tokens: Factory, plan_of: Factory) -> tuple[list[Request], list[Sampling]]:
    """Prompts of different lengths, plans, seeds and answer lengths."""
    lengths = (32, 45, 28, 40)
    requests = [
        Request(draw_tokens(n, seed=n), plan_of(method))
        for n, method in zip(lengths, list(SteeringMethod)[1:], strict=True)
    ]
    samplings = [
        Sampling(max_new_tokens=n, temperature=t, top_p=0.95, seed=n, ignore_eos=True)
        for n, t in ((2, 1.0), (3, 0.7), (12, 1.3), (15, 1.0))
    ]
    return requests, samplings


@pytest.mark.parametrize("name", ["gemma3", "gpt_neox"])
@pytest.mark.parametrize("cache", ["growing", "static"])
def test_seeded_answers_are_the_same_alone_and_in_a_batch(
    name: str, cache: str, language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    """In a growing cache the batch shrinks once half of it has finished; in a static one it never does."""
    lm = language_model(name)
    requests, samplings = mixed_batch(draw_tokens, plan_of)
    together = generate(lm, requests, samplings, cache=cache)
    for request, sampling, answer in zip(requests, samplings, together, strict=True):
        (alone,) = generate(lm, [request], [sampling])
        assert answer.token_ids == alone.token_ids
        assert len(answer.token_ids) == sampling.max_new_tokens
        assert answer.text == alone.text
        assert answer.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_finished_requests_leave_the_batch(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    requests, samplings = mixed_batch(draw_tokens, plan_of)
    rows: list[int] = []
    hook = lm.model.get_input_embeddings().register_forward_pre_hook(
        lambda _, args: rows.append(args[0].shape[0])
    )
    try:
        generate(lm, requests, samplings)
        assert rows == [4] * 3 + [2] * 9 + [1] * 3
        rows.clear()
        generate(lm, requests, samplings, cache="dynamic")
        assert rows == [4] * 15
    finally:
        hook.remove()


def test_answer_ends_at_an_end_token_which_is_no_text(speak: Factory) -> None:
    (answer,) = generate(speak("abc"), [Request(PROMPT)], Sampling(max_new_tokens=9))
    assert answer.text == "abc"
    assert answer.finish_reason == "stop"
    assert len(answer.token_ids) == len(answer.logprobs) == 4
    assert answer.token_ids[-1] == 2


def test_end_token_counts_even_as_the_last_token_allowed(speak: Factory) -> None:
    (answer,) = generate(speak("abc"), [Request(PROMPT)], Sampling(max_new_tokens=4))
    assert (answer.text, answer.finish_reason) == ("abc", "stop")
    (cut,) = generate(speak("abc"), [Request(PROMPT)], Sampling(max_new_tokens=3))
    assert (cut.text, cut.finish_reason) == ("abc", "length")


def test_end_token_can_be_ignored(speak: Factory) -> None:
    (answer,) = generate(speak("abc"), [Request(PROMPT)], Sampling(max_new_tokens=6, ignore_eos=True))
    assert (answer.text, answer.finish_reason) == ("abc###", "length")


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        (("\n\n",), "One.\nTwo."),
        (("Two.\n\nT", "."), "One"),
        (("wo.\n\nThr",), "One.\nT"),
        (("zzz", "Three"), "One.\nTwo.\n\n"),
        (("e!?",), "One.\nTwo.\n\nThree!"),
        ((), "One.\nTwo.\n\nThree!"),
    ],
)
def test_text_ends_before_a_stop_string(stop: tuple[str, ...], expected: str, speak: Factory) -> None:
    text = "One.\nTwo.\n\nThree!"
    events = list(stream(speak(text), [Request(PROMPT)], [Sampling(stop=stop, max_new_tokens=40)]))
    assert "".join(event.text for event in events) == expected
    assert events[-1].finish_reason == "stop"
    shown = ""
    for event in events:
        shown += event.text
        assert expected.startswith(shown)


def test_characters_are_shown_whole(speak: Factory) -> None:
    text = "naïve 日本🙂."
    events = list(stream(speak(text), [Request(PROMPT)], [Sampling(max_new_tokens=40)]))
    assert [event.text for event in events if event.text] == list(text)
    assert len(events) == len(text.encode()) + 1


def test_stop_string_of_several_bytes_a_character_is_found(speak: Factory) -> None:
    sampling = Sampling(max_new_tokens=40, stop=("本🙂",))
    (answer,) = generate(speak("naïve 日本🙂."), [Request(PROMPT)], sampling)
    assert (answer.text, answer.finish_reason) == ("naïve 日", "stop")


def test_character_cut_off_by_the_limit_is_left_out(speak: Factory) -> None:
    (answer,) = generate(speak("a日b"), [Request(PROMPT)], Sampling(max_new_tokens=3))
    assert (answer.text, answer.finish_reason) == ("a", "length")


def test_raw_log_probabilities_are_the_same_where_nothing_changes_the_logits(speak: Factory) -> None:
    """A bias changes what is chosen among, and leaves what the model itself thought of it."""
    lm = speak("abc")
    (plain,) = generate(lm, [Request(PROMPT)], Sampling(max_new_tokens=3))
    assert plain.raw_logprobs == plain.logprobs
    assert (plain.rule_ids, plain.constraint_events, plain.violations) == ((), (), ())
    (biased,) = generate(lm, [Request(PROMPT)], Sampling(max_new_tokens=3, logit_bias={50: 100.0}))
    assert biased.token_ids == plain.token_ids
    assert biased.raw_logprobs == pytest.approx(plain.raw_logprobs)


def test_penalties_see_the_tokens_so_far(language_model: Factory, draw_tokens: Factory) -> None:
    lm, request = language_model("llama"), Request(draw_tokens(9))
    free, bound = (
        generate(lm, [request], Sampling(max_new_tokens=40, ignore_eos=True, **settings))[0].token_ids
        for settings in ({}, {"frequency_penalty": 2.0, "presence_penalty": 2.0})
    )
    assert len(set(bound)) > len(set(free))
    (strict,) = generate(
        lm, [request], Sampling(max_new_tokens=40, ignore_eos=True, repetition_penalty=100.0)
    )
    assert not set(strict.token_ids[:20]) & set(request.token_ids)


def test_minimum_keeps_the_end_away(speak: Factory) -> None:
    sampling = Sampling(max_new_tokens=9, min_new_tokens=6)
    (answer,) = generate(speak("abc"), [Request(PROMPT)], sampling)
    assert len(answer.token_ids) == 7
    assert answer.text.startswith("abc")
    assert answer.token_ids[-1] == 2


def test_top_logprobs_come_with_every_token(speak: Factory) -> None:
    (answer,) = generate(speak("abc"), [Request(PROMPT)], Sampling(max_new_tokens=3, top_logprobs=4))
    assert [len(step) for step in answer.top_logprobs] == [4, 4, 4]
    assert [step[0] for step in answer.top_logprobs] == list(
        zip(answer.token_ids, answer.logprobs, strict=True)
    )


def test_stream_yields_what_generate_returns(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm = language_model("llama")
    requests, samplings = mixed_batch(draw_tokens, plan_of)
    answers = generate(lm, requests, samplings, with_mass=True)
    events: list[list[StreamEvent]] = [[] for _ in requests]
    for event in stream(lm, requests, samplings, with_mass=True):
        events[event.row].append(event)
    for answer, row in zip(answers, events, strict=True):
        assert tuple(event.token_id for event in row) == answer.token_ids
        assert tuple(event.logprob for event in row) == answer.logprobs
        assert "".join(event.text for event in row) == answer.text
        assert all(event.receipt is None and event.finish_reason is None for event in row[:-1])
        assert row[-1].finish_reason == answer.finish_reason
        assert row[-1].receipt is not None
        assert row[-1].receipt.summary() == answer.receipt.summary()
        n_rows = row[-1].receipt.answer.n_rows if row[-1].receipt.answer else 0
        assert n_rows == len(row) - 1  # the last token is not fed


def test_prefix_and_chunks_change_no_answer(
    language_model: Factory, draw_tokens: Factory, plan_of: Factory
) -> None:
    lm, request = language_model("mistral"), Request(draw_tokens(32), plan_of(query_scope="question"))
    sampling = Sampling(max_new_tokens=8, ignore_eos=True)
    (plain,) = generate(lm, [request], sampling)
    prefix = lm.prefill([Request(request.token_ids)]).rows()[0]
    for options in ({"prefix": prefix}, {"chunk_tokens": 5}, {"cache": "static"}, {"cache": "dynamic"}):
        assert generate(lm, [request], sampling, **options)[0].token_ids == plain.token_ids


@pytest.fixture(scope="module")
def short_window(byte_tokenizer: PreTrainedTokenizerBase) -> LanguageModel:
    """A GPT-2, whose positions are learned: beyond the 40th there is no embedding."""
    sizes = {"vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 40}
    config = AutoConfig.for_model("gpt2", **sizes, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    return LanguageModel(AutoModelForCausalLM.from_config(config), byte_tokenizer)


@pytest.mark.parametrize("cache", ["growing", "static"])
def test_each_request_needs_room_for_its_own_answer_only(
    cache: str, short_window: LanguageModel, draw_tokens: Factory
) -> None:
    """The long prompt has finished when the batch passes the window's end."""
    requests = [Request(draw_tokens(38)), Request(draw_tokens(5))]
    samplings = [Sampling(max_new_tokens=n, ignore_eos=True) for n in (2, 30)]
    together = generate(short_window, requests, samplings, cache=cache)
    for request, sampling, answer in zip(requests, samplings, together, strict=True):
        assert generate(short_window, [request], [sampling])[0].token_ids == answer.token_ids
    with pytest.raises(PromptTooLong, match="which is 1 over the context window of 40"):
        generate(short_window, requests, [Sampling(max_new_tokens=3), samplings[1]])


@pytest.mark.parametrize("samplings", [[], [Sampling()] * 3])
def test_samplings_must_be_one_per_request(samplings: Sequence[Sampling], speak: Factory) -> None:
    lm, requests = speak("a"), [Request(PROMPT)] * 2
    with pytest.raises(ValueError, match=rf"one per request \(2\), got {len(samplings)}"):
        generate(lm, requests, samplings)
    with pytest.raises(ValueError, match=rf"one per request \(2\), got {len(samplings)}"):
        next(stream(lm, requests, samplings))


def test_text_needs_a_tokenizer(language_model: Factory) -> None:
    lm = LanguageModel(language_model("llama").model)
    for use in (lambda: generate(lm, [Request(PROMPT)]), lambda: lm.vocabulary, lambda: lm.tokenizer):
        with pytest.raises(NoTokenizer, match=r"tokenizer must be given .* got llama without one"):
            use()


def test_end_tokens_come_from_the_models_description(language_model: Factory, draw_tokens: Factory) -> None:
    lm, request = language_model("llama"), Request(draw_tokens(9))
    sampling = Sampling(max_new_tokens=8)
    (long,) = generate(lm, [request], sampling)
    end = long.token_ids[3]
    first = long.token_ids.index(end)
    ending = LanguageModel(lm.model, lm.tokenizer, replace(lm.info, eos_token_ids=(2, end)))
    (short,) = generate(ending, [request], sampling)
    assert short.token_ids == long.token_ids[: first + 1]
    assert short.finish_reason == "stop"
