"""The first conversation: three facts told, then asked for in later sessions, among other questions.

A new user tells the product a name, an allergy and a city. In three later sessions, each in another order,
come questions about them, about the world, and small talk. Written before any run of it; not tuned on.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from salience_experiments.tasks.base import Item, Layout, RenderedPrompt

__all__ = ["MARKUP", "QUESTIONS", "TOLD", "Asked", "ConversationTask", "conversation_of", "is_right"]

TOLD = ("My name is Ann.", "I am allergic to peanuts.", "I live in Lisbon.")

MARKUP = ("[", "<|", "weight:", "memory_context", "model_context", "fp:sha256")
"""What stands in a prompt and never in an answer."""


@dataclass(frozen=True)
class Asked:
    """A question, any of whose answers counts; without one, small talk, right where it blurts out no fact."""

    session: int
    question: str
    answers: tuple[str, ...] = ()
    gold_text: str = "Hello!"


QUESTIONS = (
    Asked(1, "Where do I live?", ("lisbon",), "You live in Lisbon."),
    Asked(1, "What is the capital of France?", ("paris",), "The capital of France is Paris."),
    Asked(1, "What am I allergic to?", ("peanut",), "You are allergic to peanuts."),
    Asked(1, "Hello, how are you today?", (), "Hello! I am fine."),
    Asked(1, "What is my name?", ("ann",), "Your name is Ann."),
    Asked(1, "What is 2 + 3?", ("5", "five"), "5"),
    Asked(1, "Which food must I avoid?", ("peanut",), "You must avoid peanuts."),
    Asked(2, "Good morning!", (), "Good morning!"),
    Asked(2, "Which city do I live in?", ("lisbon",), "You live in Lisbon."),
    Asked(2, "How many days are in a week?", ("7", "seven"), "There are seven days in a week."),
    Asked(2, "Who am I?", ("ann",), "You are Ann."),
    Asked(2, "What is the opposite of hot?", ("cold",), "The opposite of hot is cold."),
    Asked(2, "Do I have an allergy?", ("peanut",), "Yes, you are allergic to peanuts."),
    Asked(2, "Thank you!", (), "You're welcome!"),
    Asked(3, "Remind me of my allergy.", ("peanut",), "You are allergic to peanuts."),
    Asked(3, "In which city is my home?", ("lisbon",), "Your home is in Lisbon."),
    Asked(3, "What is the capital of Italy?", ("rome",), "The capital of Italy is Rome."),
    Asked(3, "Do you remember my name?", ("ann",), "Yes, your name is Ann."),
    Asked(3, "What colour is the sky on a clear day?", ("blue",), "The sky is blue."),
    Asked(3, "Goodbye!", (), "Goodbye!"),
)

_FACTS = ("peanut", "lisbon")


def is_right(asked: Asked, answer: str) -> bool:
    """Whether an answer names what was asked for, as a word or its beginning, and shows no markup."""
    text = unicodedata.normalize("NFKC", answer).casefold()
    if any(mark in text for mark in MARKUP) or not text.strip():
        return False
    if not asked.answers:
        return not any(fact in text for fact in _FACTS)
    return any(re.search(rf"\b{re.escape(word)}(s|es)?\b", text) for word in asked.answers)


@dataclass(frozen=True)
class ConversationTask:
    """The questions, one item each; build with `conversation_of`."""

    positions: tuple[str, ...]
    max_new_tokens: int = 48

    def __post_init__(self) -> None:
        if self.positions != ("unplaced",):
            raise ValueError(f"positions must be ['unplaced'], got {self.positions}")

    @property
    def name(self) -> str:
        return "conversation"

    def items(self, position: str) -> Sequence[Item]:
        """Return the questions in their order; the session is in the metadata."""
        return tuple(
            Item(
                item_id=f"conversation/{asked.session}/{index}",
                index=index,
                question=asked.question,
                blocks=(),
                answers=asked.answers,
                gold_text=asked.gold_text,
                position=position,
                metadata={"session": asked.session},
                told=TOLD,
            )
            for index, asked in enumerate(QUESTIONS)
        )

    def render(self, item: Item, layout: Layout) -> RenderedPrompt:
        """There is no published prompt: the product writes it."""
        raise ValueError("task 'conversation' has no published prompt: render must be 'product'")

    def score(self, item: Item, answer: str) -> float:
        """Return 1.0 for a right answer without markup."""
        return float(is_right(QUESTIONS[item.index], answer))

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether more text could change the score; markup always could."""
        return False


def conversation_of(*, positions: tuple[str, ...] = ("unplaced",)) -> ConversationTask:
    """The task; it takes no parameters."""
    return ConversationTask(positions)
