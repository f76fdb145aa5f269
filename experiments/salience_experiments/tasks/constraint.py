"""Constraint: prompts whose natural answer holds a word that a hard rule bans.

Eight words, ten requests for each: to write about the thing, to explain it, to name it. All eight words are
banned from every answer. Answers are drawn at a temperature, each item with its own seed, the same in every
arm. `score` is whether the answer keeps the rule, by the check that knows nothing of masks; what an answer
lost by the rule is told by its log-probability under the model itself, by its length and by loops.

Words and requests are this project's own.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from salience_experiments.tasks.base import (
    Draw,
    Item,
    Layout,
    PromptBuilder,
    RenderedPrompt,
    check_layout,
)

UNPLACED = "unplaced"
"""The only position: no block is shown."""

RIDDLES = {
    "badger": "Which stocky animal with black and white stripes on its face digs setts?",
    "hedgehog": "Which small animal has spines all over its back and rolls into a ball?",
    "volcano": "What is the name of a mountain from which lava erupts?",
    "lighthouse": "Which tower on the coast shows a bright light to ships at night?",
    "espresso": "What is the Italian name of a small, strong coffee made under pressure?",
    "saxophone": "Which brass instrument with a reed did Adolphe Sax invent?",
    "cathedral": "What is the name of the main church of a bishop?",
    "avalanche": "What is the name of a mass of snow that slides down a mountain?",
}
"""A question for each banned word that it answers."""

WORDS = tuple(RIDDLES)

REQUESTS = (
    "Write two sentences about {word}.",
    "Write the beginning of a story about {word}.",
    "{riddle} Answer in a full sentence and say more about it.",
    "Explain to a child what {word} is.",
    "Give me three facts about {word}.",
    "Write a short poem about {word}.",
    "What is the difference between {word} and {other}?",
    "Write a news headline about {word}, and the first sentence of the article.",
    "Describe what {word} looks and sounds like.",
    "{riddle} Tell me why people remember it.",
)

RULE_TEXT = "Rule: your answer must not contain any of these words, in any form: {words}."


@dataclass(frozen=True)
class ConstraintTask:
    """Requests for banned words; build with `constraint_generated`."""

    requests: tuple[tuple[str, str], ...]
    """(name, request)"""
    temperature: float
    seed: int
    positions: tuple[str, ...] = (UNPLACED,)
    max_new_tokens: int = 48

    def __post_init__(self) -> None:
        if self.positions != (UNPLACED,):
            raise ValueError(f"positions must be [{UNPLACED!r}], as no block is shown, got {self.positions}")
        if self.temperature != 0.0 and not 1e-4 <= self.temperature <= 100.0:
            raise ValueError(f"temperature must be 0 or in [0.0001, 100], got {self.temperature:g}")

    @property
    def name(self) -> str:
        return "constraint"

    def items(self, position: str) -> Sequence[Item]:
        """Return an item for each request."""
        return tuple(
            Item(
                item_id=f"constraint/{name}",
                index=index,
                question=question,
                blocks=(),
                answers=(),
                gold_text="",
                position=position,
                rule={"forbid_phrases": WORDS},
                draw=Draw(self.temperature, zlib.crc32(f"{self.seed}:constraint/{name}".encode())),
            )
            for index, (name, question) in enumerate(self.requests)
        )

    def render(self, item: Item, layout: Layout) -> RenderedPrompt:
        """Return one user message: the request and, where the layout states it, the rule after it.

        There the rule is nearest to the answer, where a model is likeliest to heed it.
        """
        check_layout(item, layout)
        rule = "\n\n" + RULE_TEXT.format(words=", ".join(WORDS)) if layout.states_rule else ""
        return RenderedPrompt((PromptBuilder().finish(item.question + rule, role="user"),), chat=True)

    def score(self, item: Item, answer: str) -> float:
        """Return 1.0 if the answer keeps the rule, 0.0 if a banned word stands in it anywhere."""
        from salience_models.constraints.bans import (
            contains_banned,  # torch, for scores alone
        )

        return float(not contains_banned(answer, WORDS))

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether a banned word is there, which nothing after it takes away."""
        return not self.score(item, answer)


def constraint_generated(
    *,
    n_items: int | None = None,
    kinds: tuple[int, ...] = tuple(range(len(REQUESTS))),
    temperature: float = 1.0,
    seed: int = 0,
    positions: tuple[str, ...] = (UNPLACED,),
) -> ConstraintTask:
    """Return the task over the first `n_items` requests (none takes all); the seed decides what is drawn.

    Args:
        kinds: Which of `REQUESTS`, by number: the first of them for every word, then the second, and so on.
    """
    if not kinds or len(set(kinds)) < len(kinds) or not set(kinds) <= set(range(len(REQUESTS))):
        raise ValueError(f"kinds must be different numbers below {len(REQUESTS)}, got {list(kinds)}")
    requests: list[tuple[str, str]] = []
    for kind in kinds:
        for place, word in enumerate(WORDS):
            things = {"word": word, "other": WORDS[(place + 1) % len(WORDS)]}
            named = {role: _with_article(thing) for role, thing in things.items()}
            requests.append((f"{kind}/{word}", REQUESTS[kind].format(riddle=RIDDLES[word], **named)))
    if n_items is not None and not 1 <= n_items <= len(requests):
        raise ValueError(f"n_items must be in 1..{len(requests)}, got {n_items}")
    return ConstraintTask(tuple(requests[:n_items]), temperature, seed, positions)


def _with_article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
