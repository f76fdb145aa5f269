"""Greedy decoding that goes on from a state: drafts come from the text so far and are verified in a pass."""

from collections.abc import Callable, Iterable, Sequence

from salience_models.decoding.decode_state import DecodeState
from salience_models.language_model import LanguageModel

__all__ = ["PromptLookup", "continue_greedily"]

_VERIFIED_TOKENS = 64
"""About how many tokens, of all requests together, a pass verifies: on a CPU more take what a step saves."""
_MIN_VERIFIED, _MAX_VERIFIED = 4, 12
"""Tokens of one request in a pass, the one that is known included."""
_SIZES = (3, 2)


class PromptLookup:
    """A text that grows, and where each of its short runs of tokens last went on.

    An answer that quotes its prompt is soon drafted; a pass verifies the draft, so only the speed depends on
    it. Source: prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding).
    """

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


def continue_greedily(
    lm: LanguageModel,
    state: DecodeState,
    first_tokens: Sequence[int],
    max_new_tokens: Sequence[int],
    is_settled: Callable[[int, list[int]], bool] = lambda row, tokens: False,
) -> list[list[int]]:
    """Greedy tokens of each request from `first_tokens` on, up to an end token (left out) or its limit.

    `state` has been fed everything before `first_tokens`. `is_settled(row, tokens)` may end a request
    early. Requests that have ended leave the batch once they are a quarter of it. Where the state, which is
    used up, can be trimmed, tokens are drafted by prompt lookup and verified several in a pass.
    """
    outs: list[list[int]] = [[] for _ in first_tokens]
    rows, chosen = list(range(len(first_tokens))), [[token] for token in first_tokens]
    lookups = [PromptLookup(ids) for ids in state.token_ids]
    open_rows = set(rows)
    while True:
        for row, tokens in zip(rows, chosen, strict=True):
            for token in tokens if row in open_rows else ():
                is_end = token in lm.info.eos_token_ids
                if not is_end:
                    outs[row].append(token)
                    lookups[row].extend([token])
                if is_end or len(outs[row]) >= max_new_tokens[row] or is_settled(row, outs[row]):
                    open_rows.remove(row)
                    break
        if not open_rows:
            return outs
        if 4 * len(open_rows) <= 3 * len(rows):
            kept = [at for at, row in enumerate(rows) if row in open_rows]
            caches = state.rows(only=kept)
            state = lm.resume(
                caches,
                [state.requests[at] for at in kept],
                new_tokens=2 * max(max_new_tokens),
                like=state.run,
            )
            rows = [rows[at] for at in kept]
        fed = [outs[row][-1:] if row in open_rows else [] for row in rows]
        if lm.can_trim(state):
            n_draft = min(max(_VERIFIED_TOKENS // len(rows), _MIN_VERIFIED), _MAX_VERIFIED) - 1
            for row, tokens in zip(rows, fed, strict=True):
                if tokens:
                    tokens += lookups[row].propose(min(n_draft, max_new_tokens[row] - len(outs[row]) - 1))
        if max(map(len, fed)) == 1:
            logits = lm.decode(state, [tokens[0] if tokens else None for tokens in fed])
            chosen = [[token] for token in logits.argmax(-1).tolist()]
            continue
        # Each draft counts as far as greedy decoding agrees, and one token more; the rest is taken back.
        before, chosen = [len(ids) for ids in state.token_ids], []
        for tokens, own in zip(fed, lm.extend(state, fed).argmax(-1).tolist(), strict=True):
            agreed = 0
            while agreed + 1 < len(tokens) and tokens[agreed + 1] == own[agreed]:
                agreed += 1
            chosen.append(own[: agreed + 1])
        lm.trim(state, [n + min(len(f), len(c)) for n, f, c in zip(before, fed, chosen, strict=True)])
