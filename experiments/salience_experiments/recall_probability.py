"""Fits what turns recall's figures into a probability, and measures it on messages it was not fitted on.

    python -m salience_experiments.recall_probability --squad FILE --hotpot FILE --locomo FILE --embedder DIR

prints the coefficients that `salience_memory/ranking.py` holds, and for each source the area under the ROC
curve and how often memories of a predicted probability bore on the message. A pair is a message and one of
the five texts that the ranker puts first for it, so that what is measured is what recall returns. LoCoMo may
be used for evaluation only, and is never fitted on; nor are SQuAD's unanswerable questions, whose paragraph
is about what is asked and still holds no answer.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from salience_memory import Embedder, EmbeddingCache, TextRecall
from salience_memory.ranking import Ranked, probability_features

_TOP_K = 5
_RIDGE = 1e-3
_SHARES = {"personal": 0.5, "squad2": 0.3, "hotpotqa": 0.2}
"""How much each source counts in the fit: what the product is for first."""

_BINS = np.linspace(0.0, 1.0, 6)


@dataclass(frozen=True)
class RecallCase:
    """A message, the texts that are remembered, and the places of those that bear on it."""

    source: str
    text: str
    memories: tuple[str, ...]
    relevant: frozenset[int]


def personal_messages(rng: random.Random) -> Iterator[RecallCase]:
    """Of one to twelve facts about a person: with the fact meant among them, without it, and small talk."""
    listed: Any = yaml.safe_load(
        (resources.files("salience_experiments") / "recall_facts.yaml").read_text(encoding="utf-8")
    )
    facts = [entry["fact"] for entry in listed["facts"]]
    for entry in listed["facts"]:
        others = [fact for fact in facts if fact != entry["fact"]]
        for text in entry["messages"]:
            memories = rng.sample(others, rng.randint(1, 11))
            yield RecallCase("personal", text, tuple(memories), frozenset())
            memories.insert(rng.randrange(len(memories) + 1), entry["fact"])
            yield RecallCase("personal", text, tuple(memories), frozenset([memories.index(entry["fact"])]))
    for kind, texts in listed["nothing"].items():
        for text in texts:
            memories = tuple(rng.sample(facts, rng.randint(1, 12)))
            yield RecallCase(f"personal, {kind}", text, memories, frozenset())


def squad_messages(path: Path, rng: random.Random) -> Iterator[RecallCase]:
    """Questions with their paragraph among nine others, and every other one with ten others instead."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    paragraphs = list(dict.fromkeys(entry["context"] for entry in entries))
    for number, entry in enumerate(entries):
        others = rng.sample([text for text in paragraphs if text != entry["context"]], 9)
        if entry["is_impossible"]:
            memories = (*others, entry["context"])
            yield RecallCase("squad2, unanswerable", entry["question"], memories, frozenset([9]))
        elif number % 2:
            yield RecallCase("squad2", entry["question"], (*others, entry["context"]), frozenset([9]))
        else:
            yield RecallCase("squad2", entry["question"], tuple(others), frozenset())


def hotpot_messages(path: Path) -> Iterator[RecallCase]:
    """Questions among their ten paragraphs, two of which bear on them."""
    for entry in json.loads(path.read_text(encoding="utf-8")):
        titles = {title for title, _ in entry["supporting_facts"]}
        paragraphs = [(title, " ".join([title, *sentences])) for title, sentences in entry["context"]]
        relevant = frozenset(place for place, (title, _) in enumerate(paragraphs) if title in titles)
        yield RecallCase("hotpotqa", entry["question"], tuple(text for _, text in paragraphs), relevant)


def locomo_messages(path: Path, rng: random.Random, n_conversations: int = 2) -> Iterator[RecallCase]:
    """Questions about long conversations, whose turns are remembered; half of them about another one."""
    conversations: list[tuple[dict[str, str], list[Any]]] = []
    for entry in json.loads(path.read_text(encoding="utf-8"))[:n_conversations]:
        sessions = (value for value in entry["conversation"].values() if isinstance(value, list))
        turns = {turn["dia_id"]: f"{turn['speaker']}: {turn['text']}" for said in sessions for turn in said}
        conversations.append((turns, rng.sample([qa for qa in entry["qa"] if qa.get("answer")], 60)))
    for place, (turns, questions) in enumerate(conversations):
        ids = list(turns)
        for qa in questions:
            relevant = frozenset(ids.index(name) for name in qa["evidence"] if name in turns)
            yield RecallCase("locomo", qa["question"], tuple(turns.values()), relevant)
            strangers = conversations[(place + 1) % len(conversations)][0]
            yield RecallCase("locomo, another's", qa["question"], tuple(strangers.values()), frozenset())


@dataclass(frozen=True)
class Pairs:
    """What the ranker said of messages and memories, and whether they belong together."""

    sources: NDArray[np.str_]
    features: NDArray[np.float64]
    """[record, feature], as `probability_features` gives them."""
    labels: NDArray[np.bool_]

    def where(self, chosen: NDArray[np.bool_]) -> "Pairs":
        return Pairs(self.sources[chosen], self.features[chosen], self.labels[chosen])


def rank_messages(messages: Sequence[RecallCase], recall: TextRecall) -> Pairs:
    """The pairs of every message with the texts that the ranker puts first."""
    found: list[tuple[RecallCase, Ranked[int]]] = []
    for message in messages:
        found += [(message, ranked) for ranked in recall.rank(message.text, message.memories, _TOP_K)]
    return Pairs(
        np.array([message.source for message, _ in found]),
        np.array([probability_features(ranked.breakdown) for _, ranked in found]),
        np.array([ranked.item in message.relevant for message, ranked in found]),
    )


def fit(pairs: Pairs) -> NDArray[np.float64]:
    """Coefficients of a logistic model, the intercept last, by Newton's method."""
    kinds = np.array([source.partition(",")[0] for source in pairs.sources])
    importance = np.array([_SHARES[kind] / np.count_nonzero(kinds == kind) for kind in kinds])
    importance *= len(kinds) / importance.sum()
    design = np.c_[pairs.features, np.ones(len(kinds))]
    coefficients = np.zeros(design.shape[1])
    for _ in range(50):
        predicted = 1.0 / (1.0 + np.exp(-design @ coefficients))
        gradient = design.T @ (importance * (pairs.labels - predicted)) - _RIDGE * coefficients
        curvature = (design.T * (importance * predicted * (1.0 - predicted))) @ design
        coefficients += np.linalg.solve(curvature + _RIDGE * np.eye(len(coefficients)), gradient)
    return coefficients


def describe(pairs: Pairs, coefficients: NDArray[np.float64]) -> str:
    """A line a source: pairs, area under the ROC curve, Brier score, and of each fifth of the predictions the
    mean prediction, the share that bore on the message, and how many there were."""
    predicted = 1.0 / (1.0 + np.exp(-(pairs.features @ coefficients[:-1] + coefficients[-1])))
    lines: list[str] = []
    for source in ("", *dict.fromkeys(pairs.sources.tolist())):
        chosen = np.array([name.startswith(source) for name in pairs.sources])
        scores, labels = predicted[chosen], pairs.labels[chosen]
        parts = [f"{source or 'all':22} {len(labels):5}"]
        if 0 < np.count_nonzero(labels) < len(labels):
            wins = scores[labels][:, None] - scores[~labels][None]
            parts.append(f"AUC {np.mean((wins > 0) + 0.5 * (wins == 0)):.3f}")
        parts.append(f"Brier {np.mean((scores - labels) ** 2):.3f}")
        fifths = np.clip(np.digitize(scores, _BINS) - 1, 0, len(_BINS) - 2)
        for fifth in range(len(_BINS) - 1):
            if np.any(inside := fifths == fifth):
                share = f"{scores[inside].mean():.2f}>{labels[inside].mean():.2f}"
                parts.append(f"{share} ({np.count_nonzero(inside)})")
        lines.append("  ".join(parts))
    return "\n".join(lines)


def main() -> None:
    """Fit and measure, with the embedder and by words alone."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("squad", "hotpot", "locomo", "embedder"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=200, help="Of HotpotQA.")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    messages = [
        *personal_messages(rng),
        *squad_messages(options.squad, rng),
        *islice(hotpot_messages(options.hotpot), options.questions),
        *locomo_messages(options.locomo, rng),
    ]
    vectors = EmbeddingCache(Embedder(options.embedder), cache_bytes=2**30)
    vectors.embed([text for case in messages for text in (case.text, *case.memories)])  # in large batches
    for name, recall in (("with embeddings", TextRecall(vectors.embed)), ("by words alone", TextRecall())):
        # A message's twin without its memory is on the same side, so nothing is fitted that is measured.
        halves = [random.Random(message.text).random() < 0.5 for message in messages]
        seen = [m for m, half in zip(messages, halves, strict=True) if half and not is_held_out(m)]
        pairs = rank_messages(seen, recall)
        coefficients = fit(pairs)
        unseen = [m for m, half in zip(messages, halves, strict=True) if not half or is_held_out(m)]
        told = ", ".join(f"{value:.3f}" for value in coefficients)
        print(f"{name}: {told} (fitted on {len(pairs.labels)})")
        print(describe(rank_messages(unseen, recall), coefficients), flush=True)


def is_held_out(message: RecallCase) -> bool:
    """Whether a message is for measuring alone."""
    return message.source.startswith("locomo") or message.source == "squad2, unanswerable"


if __name__ == "__main__":
    main()
