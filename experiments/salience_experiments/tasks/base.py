"""What every task is made of: blocks, items, layouts, and rendered prompts with character spans.

A *block* is the unit that arms weigh and move: one document, or one key-value pair. An *item* is one
question with its blocks in prompt order. A *layout* says how to lay the blocks out; `plain_layout`
leaves them as they are. A task renders an item under a layout and says where each block's text lies, so that
a bias lands on the right characters whatever a prompt edit did.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from salience_models.text.messages import Message, TextSpan

QUESTION_SPAN = "question"
POSITIONS = ("first", "middle", "last")
GOLD_BLOCK = "gold"
MARKER_OPEN = "[IMPORTANT]"
MARKER_CLOSE = "[/IMPORTANT]"


@dataclass(frozen=True)
class Block:
    """One movable piece of context.

    Attributes:
        name: Names the content, not the place: it stays the same when the block moves. Never `QUESTION_SPAN`.
        text: Exactly the characters that the block's span covers in a rendered prompt.
        is_gold: Whether the answer stands in this block.
    """

    name: str
    text: str
    is_gold: bool = False


@dataclass(frozen=True)
class Draw:
    """How an item's answer is drawn, in every arm alike; temperature 0 is greedy."""

    temperature: float
    seed: int


@dataclass(frozen=True)
class Item:
    """One question and its context at one gold position.

    Attributes:
        item_id: The same at every position, so that positions pair up.
        index: Place in the task's sequence, from 0; index % 5 == 0 is the development slice.
        question: What is asked; statistics cluster on it.
        blocks: In prompt order.
        answers: Any of these counts as right.
        gold_text: The answer as it follows the prompt directly, with its leading space if it needs one.
        position: Label of the place where the gold block lies.
        rule: A hard rule for the answer, as plain data of `salience_models.constraints.Rule`; None: none.
        draw: How the answer is drawn. Such an item has no gold answer. None: the answer is greedy, and the
            gold answer is scored.
        told: What the user said in an earlier session of the product, for its registrar to notice.
    """

    item_id: str
    index: int
    question: str
    blocks: tuple[Block, ...]
    answers: tuple[str, ...]
    gold_text: str
    position: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rule: Mapping[str, Any] | None = None
    draw: Draw | None = None
    told: tuple[str, ...] = ()

    def block(self, name: str) -> Block:
        """Return the block called `name`; ValueError if the item has none."""
        for block in self.blocks:
            if block.name == name:
                return block
        names = ", ".join(block.name for block in self.blocks)
        raise ValueError(f"name must be one of {names}, got {name!r}")


@dataclass(frozen=True)
class Layout:
    """How an item's blocks are laid out, by block name.

    Attributes:
        blocks: The order to render; a block left out is not shown.
        query_first: Whether the question also stands before the blocks.
        markers: Blocks to set between marker lines; their own text stays unchanged.
        repeated: Blocks shown again after all blocks, next to the question.
        states_rule: Whether the item's rule is written into the prompt.
    """

    blocks: tuple[str, ...]
    query_first: bool = False
    markers: frozenset[str] = frozenset()
    repeated: tuple[str, ...] = ()
    states_rule: bool = False


@dataclass(frozen=True)
class RenderedPrompt:
    """A prompt and where its blocks lie.

    Every span lies in the last message: one for each rendered block in prompt order (a block's second copy
    is called `<name>#2`), then `QUESTION_SPAN`, from the end of the last block (and of its marker, if any)
    to the end of the message. A raw prompt (`chat` false) is one message with the role "raw", to be tokenized
    as it stands.
    """

    messages: tuple[Message, ...]
    chat: bool

    @property
    def text(self) -> str:
        """Text of the message that holds the blocks; of a raw prompt, all of it."""
        return self.messages[-1].content

    @property
    def spans(self) -> tuple[TextSpan, ...]:
        return self.messages[-1].spans


class Task(Protocol):
    """What the runner needs of a task. Two tasks built alike yield the same items in any process."""

    @property
    def name(self) -> str: ...

    @property
    def positions(self) -> tuple[str, ...]: ...

    @property
    def max_new_tokens(self) -> int: ...

    def items(self, position: str) -> Sequence[Item]:
        """Return every item with its gold block at `position`; only that block moves between positions."""
        ...

    def render(self, item: Item, layout: Layout) -> RenderedPrompt: ...

    def score(self, item: Item, answer: str) -> float:
        """Return the task's published metric for one answer, from 0.0 to 1.0."""
        ...

    def is_settled(self, item: Item, answer: str) -> bool:
        """Return whether no further text could change the score of an answer that begins so."""
        ...


def plain_layout(item: Item) -> Layout:
    """Return the layout that shows the item as it is."""
    return Layout(blocks=tuple(block.name for block in item.blocks))


def position_index(position: str, n_blocks: int) -> int:
    """Return the index of the gold block: "first", "middle" (n // 2), "last", or a decimal number below n."""
    named = {"first": 0, "middle": n_blocks // 2, "last": n_blocks - 1}
    if position in named:
        return named[position]
    if position.isdecimal() and int(position) < n_blocks:
        return int(position)
    raise ValueError(f"position must be first, middle, last or a number below {n_blocks}, got {position!r}")


def place_gold(gold: Block, distractors: Sequence[Block], position: str) -> tuple[Block, ...]:
    """Return the distractors in their order with the gold block set in at `position`."""
    at = position_index(position, len(distractors) + 1)
    return (*distractors[:at], gold, *distractors[at:])


def check_layout(item: Item, layout: Layout) -> None:
    """Raise ValueError unless the layout shows at least one of the item's blocks, none twice and no other.

    An item without blocks takes a layout without blocks, and one without a rule a layout that states none.
    """
    if layout.states_rule and item.rule is None:
        raise ValueError(f"layout.states_rule must be False for an item without a rule, got {item.item_id!r}")
    if item.blocks and not layout.blocks:
        raise ValueError("layout.blocks must name at least one block, got none")
    if len(set(layout.blocks)) != len(layout.blocks):
        raise ValueError(f"layout.blocks must not name a block twice, got {layout.blocks}")
    for name in layout.blocks:
        item.block(name)
    for name in (*layout.repeated, *sorted(layout.markers)):
        if name not in layout.blocks:
            raise ValueError(f"layout must mark and repeat only blocks it shows, got {name!r}")


class PromptBuilder:
    """Writes one message piece by piece and keeps each block's span."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._spans: list[TextSpan] = []
        self._copies: dict[str, int] = {}

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def add_block(self, block: Block) -> None:
        """Write the block's text; a later copy of the same block is named `<name>#2`."""
        copy = self._copies[block.name] = self._copies.get(block.name, 0) + 1
        name = block.name if copy == 1 else f"{block.name}#{copy}"
        self._add_span(name, block.text)

    def finish(self, question: str, role: str) -> Message:
        """Write the text after the last block, which is the question span, and return the message."""
        self._add_span(QUESTION_SPAN, question)
        return Message(role=role, content="".join(self._parts), spans=tuple(self._spans))

    def _add_span(self, name: str, text: str) -> None:
        start = self._length
        self.add(text)
        self._spans.append(TextSpan(name, start, self._length))


def add_documents(builder: PromptBuilder, item: Item, layout: Layout, label: Callable[[int], str]) -> None:
    """Write the layout's blocks as lines `label(number)` + text, numbered from 1 in rendered order.

    A repeated block keeps its number. No newline follows the last line.
    """
    check_layout(item, layout)
    numbers = {name: number for number, name in enumerate(layout.blocks, start=1)}
    for place, name in enumerate((*layout.blocks, *layout.repeated)):
        builder.add("\n" if place else "")
        is_marked = name in layout.markers
        builder.add(f"{MARKER_OPEN}\n" if is_marked else "")
        builder.add(label(numbers[name]))
        builder.add_block(item.block(name))
        builder.add(f"\n{MARKER_CLOSE}" if is_marked else "")
