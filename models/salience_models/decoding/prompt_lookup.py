"""Drafts of what comes next, read off what came before: an answer that quotes its prompt is soon written.

Prompt lookup decoding (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding). A draft is only a
guess that one pass verifies, so it changes how fast greedy decoding is and nothing else.
"""

from collections.abc import Iterable

__all__ = ["PromptLookup"]

_SIZES = (3, 2)


class PromptLookup:
    """A text that grows, and where each of its short runs of tokens last went on."""

    def __init__(self, tokens: Iterable[int]) -> None:
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}
        self._last_ends: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append what was written."""
        for token in tokens:
            # A run is known once something follows it: the text's own end would find itself.
            self._ends |= self._last_ends
            self._tokens.append(token)
            end = len(self._tokens)
            self._last_ends = {tuple(self._tokens[end - size :]): end for size in _SIZES if size <= end}

    def propose(self, n_tokens: int) -> list[int]:
        """At most `n_tokens` that followed the last tokens, the longest run of them, when last they came."""
        for run in self._last_ends:
            if run in self._ends:
                start = self._ends[run]
                return self._tokens[start : start + n_tokens]
        return []
