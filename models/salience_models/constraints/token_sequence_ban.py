"""The peer of our bans: transformers' `NoBadWordsLogitsProcessor`, used as its documentation says.

It bans token sequences, not text: a word that is put together from other tokens, or that stands inside a
longer one, comes through. Kept for comparison; rules that must hold are `compile_rules`'.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import NoBadWordsLogitsProcessor, PreTrainedTokenizerBase

from salience_kernels import BannedIds, TokenMask
from salience_models.constraints.combined import ConstraintState, TokenConstraint
from salience_models.constraints.rule import Rule
from salience_models.constraints.vocabulary import Vocabulary

__all__ = ["TokenSequenceBan", "ban_token_sequences", "usual_encodings"]


@dataclass(frozen=True, eq=False)
class TokenSequenceBan(TokenConstraint):
    """A `forbid_phrases` rule kept by the stock processor, in place of masks that would keep it.

    The check after the answer is that of any constraint, so its `violations` are what came through. The
    processor is shown the answer's tokens without the prompt's, which is the same wherever the prompt ends
    with a control token, as chats do.
    """

    processor: NoBadWordsLogitsProcessor = field(kw_only=True, repr=False)

    @property
    def fingerprint(self) -> str:
        """Unlike that of the exact masks for the same rule."""
        return f"token-sequences-{super().fingerprint}"

    def start(self) -> "TokenSequenceState":
        """The state at the start of an answer."""
        return TokenSequenceState(self, [])


class TokenSequenceState(ConstraintState):
    """The tokens of one answer, which the processor looks at as a whole on every step."""

    def __init__(self, constraint: TokenSequenceBan, token_ids: list[int]) -> None:
        super().__init__(constraint, None, [], n_tokens=len(token_ids))
        self._ban = constraint
        self._token_ids = token_ids

    def fork(self) -> "TokenSequenceState":
        """An independent copy."""
        return TokenSequenceState(self._ban, list(self._token_ids))

    def advance(self, token_id: int) -> None:
        """Take a token."""
        super().advance(token_id)
        self._token_ids.append(token_id)

    def rollback(self, n_tokens: int) -> None:
        """Take the last tokens back."""
        super().rollback(n_tokens)
        del self._token_ids[len(self._token_ids) - n_tokens :]

    def _find_mask(self) -> TokenMask | None:
        input_ids = torch.tensor([self._token_ids], dtype=torch.long)
        scores = self._ban.processor(input_ids, torch.zeros(1, self._ban.vocabulary.n_vocab))  # type: ignore[arg-type]
        ids = (scores[0] == -torch.inf).nonzero().flatten().int()
        return BannedIds(ids) if len(ids) else None


def ban_token_sequences(
    rule: Rule, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
) -> TokenSequenceBan:
    """What a careful user of transformers makes of a rule's phrases.

    Raises:
        ValueError: The rule is not one of `forbid_phrases`.
    """
    if rule.forbid_phrases is None:
        raise ValueError(f"rule must have forbid_phrases to ban token sequences, got {rule.kind}")
    processor = NoBadWordsLogitsProcessor(
        usual_encodings(rule.forbid_phrases, tokenizer), list(vocabulary.eos_token_ids)
    )
    return TokenSequenceBan((rule,), vocabulary, (), None, (), processor=processor)


def usual_encodings(phrases: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Each phrase as it stands and in lower, upper and title case, with and without a leading space."""
    spellings = [
        lead + spelling
        for phrase in phrases
        for spelling in (phrase, phrase.lower(), phrase.upper(), phrase.title())
        for lead in ("", " ")
    ]
    encoded = [tuple(tokenizer(s, add_special_tokens=False)["input_ids"]) for s in dict.fromkeys(spellings)]
    return [list(ids) for ids in dict.fromkeys(encoded)]
