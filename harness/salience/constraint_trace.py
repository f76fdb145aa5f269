"""Where rules changed an answer: what the model wanted, which rules forbade it, what came instead."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from salience_kernels import TokenMask
from salience_models import LanguageModel, Request, compile_rules

__all__ = ["MaskedStep", "trace_masked"]


@dataclass(frozen=True)
class MaskedStep:
    """A place where the model's own first choice is not in the answer because of rules.

    Attributes:
        position: Of the token in the answer, from 0.
        wanted: Text of the model's first choice; of an end token, its name.
        taken: Text of the token that the answer has instead; None where it ended for want of one.
        rule_ids: Rules that forbid the first choice: of phrases each by its own mask, others with those they
            were joined with into one grammar; all masked ones where only their intersection does.
        is_dead_end: The mask allows the first choice: nothing could follow it.
    """

    position: int
    wanted: str
    taken: str | None
    rule_ids: tuple[str, ...]
    is_dead_end: bool = False


@torch.inference_mode()
def trace_masked(
    lm: LanguageModel, request: Request, token_ids: Sequence[int], *, is_greedy: bool = True
) -> list[MaskedStep]:
    """The steps of a finished answer at which rules overruled the model, by one more pass over it.

    Args:
        lm: The model that answered.
        request: What it answered, its constraint included.
        token_ids: The answer, the end token included.
        is_greedy: Whether the answer took the first choice wherever it could; then a first choice that is
            allowed and not taken was one that nothing could follow.
    """
    constraint = request.constraint
    if constraint is None:
        return []
    ends = set(lm.info.eos_token_ids)
    has_ended = bool(token_ids) and token_ids[-1] in ends
    logits = _raw_logits(lm, request, token_ids[:-1] if has_ended else token_ids)
    state = constraint.start()
    # Rules of phrases always run alone; others may have been joined, and alone would not take the answer.
    bans = [
        (rule.rule_id, compile_rules([rule], constraint.vocabulary).after(constraint.prompt_tail).start())
        for rule in constraint.rules
        if rule.forbid_phrases is not None
    ]
    steps = []
    for position, row in enumerate(logits):
        taken = token_ids[position] if position < len(token_ids) else None
        wanted = int(row.argmax())
        is_masked = not _is_allowed(state.mask(), wanted, len(row))
        if is_masked or (is_greedy and taken not in (wanted, None)):
            found = {rule_id for rule_id, own in bans if not _is_allowed(own.mask(), wanted, len(row))}
            for rule_ids, mask in state.grammar_masks():
                if not _is_allowed(mask, wanted, len(row)):
                    found.update(rule_ids)
            forbidding = tuple(rule_id for rule_id in constraint.masked_rule_ids if rule_id in found)
            steps.append(
                MaskedStep(
                    position,
                    _text_of(lm, wanted),
                    None if taken is None else _text_of(lm, taken),
                    forbidding or constraint.masked_rule_ids,
                    is_dead_end=not is_masked,
                )
            )
        if taken is None or taken in ends:
            break
        for own in (state, *(own for _, own in bans)):
            own.advance(taken)
    # The limit of tokens ends an answer too, and then nothing was wanted after it.
    return [step for step in steps if step.taken is not None or state.is_dead]


def _raw_logits(lm: LanguageModel, request: Request, token_ids: Sequence[int]) -> Tensor:
    """The model's own after the prompt and after each token, `[n_tokens + 1, vocab]`."""
    state = lm.prefill([request])
    first = state.logits
    if not token_ids:
        return first.float()
    return torch.cat([first, lm.extend(state, [list(token_ids)])[0]]).float()


def _is_allowed(mask: TokenMask | None, token_id: int, n_vocab: int) -> bool:
    return mask is None or bool(mask.unpack(n_vocab)[token_id])


def _text_of(lm: LanguageModel, token_id: int) -> str:
    data = lm.vocabulary.token_bytes[token_id]
    if data is None or token_id in lm.info.eos_token_ids:
        return str(lm.tokenizer.convert_ids_to_tokens(token_id))
    return data.decode("utf-8", "backslashreplace")
