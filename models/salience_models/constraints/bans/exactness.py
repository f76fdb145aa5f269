"""Masks against the specification, one (state, token) pair after the other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from salience_kernels import TokenMask, intersect_masks
from salience_models.constraints.bans import reference
from salience_models.constraints.bans.automaton import DEAD
from salience_models.constraints.bans.reference import PhrasePattern
from salience_models.constraints.bans.token_masks import BanMasks

__all__ = ["Exactness", "compare_with_reference", "prefixes_of"]


@dataclass
class Exactness:
    """What was compared: `mismatches` are (prefix, token id), -1 for a disagreement on the prefix itself."""

    n_prefixes: int = 0
    n_pairs: int = 0
    mismatches: list[tuple[bytes, int]] = field(default_factory=list)

    def add(self, other: "Exactness") -> None:
        """Count another comparison in."""
        self.n_prefixes += other.n_prefixes
        self.n_pairs += other.n_pairs
        self.mismatches += other.mismatches


def compare_with_reference(rules: Sequence[BanMasks], prefixes: Iterable[bytes]) -> Exactness:
    """Compare mask, next state and permission to end, after each prefix, with brute force.

    Args:
        rules: One or more over the same vocabulary; of several, the intersection of their masks is compared.
        prefixes: Texts, whole characters or not; what a rule bans in one must kill its automaton.
    """
    found, token_bytes = Exactness(), rules[0].token_bytes
    patterns = [_patterns(rule) for rule in rules]
    everything = [pattern for of_rule in patterns for pattern in of_rule]
    for prefix in prefixes:
        states = [rule.automaton.advance_bytes(rule.automaton.start, prefix) for rule in rules]
        found.n_prefixes += 1
        deaths = [reference.is_banned(prefix, of_rule) for of_rule in patterns]
        if [state == DEAD for state in states] != deaths:
            found.mismatches.append((prefix, -1))
        if any(deaths) or DEAD in states:
            continue
        can_end = all(rule.automaton.may_end(s) for rule, s in zip(rules, states, strict=True))
        if can_end != reference.may_end(prefix, everything):
            found.mismatches.append((prefix, -1))
        expected = set(reference.banned_tokens(prefix, token_bytes, everything))
        wrong = expected ^ _masked(rules, states)
        wrong |= expected ^ {i for i in range(len(token_bytes)) if _dies(rules, states, i)}
        found.mismatches += [(prefix, token_id) for token_id in sorted(wrong)]
        found.n_pairs += sum(data is not None for data in token_bytes)
    return found


def prefixes_of(phrases: Iterable[str]) -> list[bytes]:
    """Every beginning of every phrase, cut at each byte, at the start of a text and after a letter."""
    found: dict[bytes, None] = {}
    for phrase in phrases:
        data = phrase.encode()
        for end in range(len(data)):
            found.update({data[:end]: None, b"x" + data[:end]: None})
    return list(found)


def _patterns(rule: BanMasks) -> tuple[PhrasePattern, ...]:
    automaton = rule.automaton
    return reference.compile_phrases(
        automaton.phrases,
        whole_word=automaton.whole_word,
        confusables=automaton.confusables,
        in_json=automaton.in_json,
    )


def _masked(rules: Sequence[BanMasks], states: Sequence[int]) -> set[int]:
    mask: TokenMask | None = None
    for rule, state in zip(rules, states, strict=True):
        mask = intersect_masks(mask, rule.mask(state), rule.n_vocab)
    assert mask is not None
    return set((~mask.unpack(rules[0].n_vocab)).nonzero().flatten().tolist())


def _dies(rules: Sequence[BanMasks], states: Sequence[int], token_id: int) -> bool:
    return any(rule.advance(state, token_id) == DEAD for rule, state in zip(rules, states, strict=True))
