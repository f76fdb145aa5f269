"""Prompt edits: what each shows, and that spans stay right in every task."""

from collections.abc import Callable

import pytest

from salience_experiments.prompt_edits import PromptEdit, resolve_prompt_edit
from salience_experiments.tasks import (
    QUESTION_SPAN,
    Item,
    KvTask,
    Layout,
    QaTask,
    Task,
    plain_layout,
)
from salience_experiments.tasks.documents import DocumentsRecord, DocumentsTask
from salience_experiments.tasks.kv import KvRecord
from salience_experiments.tasks.qa import Passage, QaRecord

QA = QaTask("x", (QaRecord(0, "q?", ("g",), Passage("G", "g"), (Passage("A", "a"), Passage("B", "b"))),))
TASKS: dict[str, Task] = {
    "kv": KvTask("x", (KvRecord("g", "1", (("a", "2"), ("b", "3"))),)),
    "qa": QA,
    "synthwiki": DocumentsTask((DocumentsRecord(0, "q?", ("g",), "G g", ("A a", "B b")),)),
}
WEIGHTS = {"d0": 0.9, "d1": 0.7}  # gold keeps the neutral 0.5


@pytest.fixture
def item() -> Item:
    """Blocks d0, gold, d1."""
    return QA.items("middle")[0]


def text_after_instruction(item: Item, layout: Layout) -> str:
    return QA.render(item, layout).text.partition("irrelevant).\n\n")[2]


def test_reorder_puts_the_heaviest_block_last_and_renumbers(item: Item):
    layout = resolve_prompt_edit("reorder")(item, WEIGHTS)
    assert layout.blocks == ("gold", "d1", "d0")
    assert text_after_instruction(item, layout) == (
        "Document [1](Title: G) g\nDocument [2](Title: B) b\nDocument [3](Title: A) a\n\n"
        "Question: q?\nAnswer:"
    )


def test_reorder_keeps_the_order_of_equal_weights(item: Item):
    assert resolve_prompt_edit("reorder")(item, {"gold": 0.5}).blocks == ("d0", "gold", "d1")


def test_repeat_shows_the_top_block_again_with_its_number(item: Item):
    layout = resolve_prompt_edit("repeat")(item, {"gold": 0.9})
    assert text_after_instruction(item, layout) == (
        "Document [1](Title: A) a\nDocument [2](Title: G) g\nDocument [3](Title: B) b\n"
        "Document [2](Title: G) g\n\nQuestion: q?\nAnswer:"
    )
    names = [span.name for span in QA.render(item, layout).spans]
    assert names == ["d0", "gold", "d1", "gold#2", QUESTION_SPAN]


def test_marker_wraps_the_top_block_in_lines(item: Item):
    layout = resolve_prompt_edit("marker")(item, {"gold": 0.9})
    assert text_after_instruction(item, layout) == (
        "Document [1](Title: A) a\n[IMPORTANT]\nDocument [2](Title: G) g\n[/IMPORTANT]\n"
        "Document [3](Title: B) b\n\nQuestion: q?\nAnswer:"
    )


def test_top_only_leaves_the_top_block(item: Item):
    layout = resolve_prompt_edit("top_only")(item, WEIGHTS)
    assert text_after_instruction(item, layout) == "Document [1](Title: A) a\n\nQuestion: q?\nAnswer:"


def test_query_aware_asks_twice_whatever_the_weights(item: Item):
    layout = resolve_prompt_edit("query_aware")(item, WEIGHTS)
    assert layout == Layout(("d0", "gold", "d1"), query_first=True)


def test_kv_repeat_stays_one_object():
    task = TASKS["kv"]
    item = task.items("first")[0]
    text = task.render(item, resolve_prompt_edit("repeat")(item, {"gold": 0.9})).text
    assert text.partition("JSON data:\n")[2] == (
        '{"g": "1",\n "a": "2",\n "b": "3",\n "g": "1"}\n\nKey: "g"\nCorresponding value:'
    )


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("first", '{[IMPORTANT]\n "g": "1",\n [/IMPORTANT]\n "a": "2",\n "b": "3"}'),
        ("last", '{"a": "2",\n "b": "3",\n [IMPORTANT]\n "g": "1"\n [/IMPORTANT]}'),
    ],
)
def test_kv_marker_keeps_the_pair_unchanged(position: str, expected: str):
    task = TASKS["kv"]
    item = task.items(position)[0]
    text = task.render(item, resolve_prompt_edit("marker")(item, {"gold": 0.9})).text
    assert text.partition("JSON data:\n")[2].partition("\n\nKey")[0] == expected


def test_equal_weights_treat_all_blocks_alike(item: Item):
    names = tuple(block.name for block in item.blocks)
    equal = dict.fromkeys(names, 0.8)
    assert resolve_prompt_edit("top_only")(item, equal).blocks == names
    assert resolve_prompt_edit("repeat")(item, equal).repeated == names
    assert resolve_prompt_edit("marker")(item, equal).markers == frozenset(names)


@pytest.mark.parametrize("edit", list(PromptEdit))
@pytest.mark.parametrize("position", ["first", "middle", "last"])
@pytest.mark.parametrize("name", list(TASKS))
def test_spans_slice_back_to_their_blocks(name: str, position: str, edit: PromptEdit):
    task = TASKS[name]
    item = task.items(position)[0]
    for weights in (WEIGHTS, {"gold": 0.9}, {}):
        layout = resolve_prompt_edit(edit)(item, weights)
        prompt = task.render(item, layout)
        *blocks, question = prompt.spans
        assert [span.name.partition("#")[0] for span in blocks] == [*layout.blocks, *layout.repeated]
        assert len({span.name for span in prompt.spans}) == len(prompt.spans)
        for span in blocks:
            block = item.block(span.name.partition("#")[0])
            assert prompt.text[span.start : span.end] == block.text
        ends = [span.end for span in blocks]
        assert ends == sorted(ends)
        assert question.name == QUESTION_SPAN
        assert question.start >= ends[-1]
        assert question.end == len(prompt.text)
        assert layout.markers or question.start == ends[-1]


@pytest.mark.parametrize("edit", list(PromptEdit))
def test_unknown_block_in_weights_is_refused(item: Item, edit: PromptEdit):
    with pytest.raises(ValueError, match="must be one of d0, gold, d1, got 'd9'"):
        resolve_prompt_edit(edit)(item, {"d9": 0.9})


def test_unknown_edit_is_refused():
    with pytest.raises(ValueError, match=r"must be one of reorder, repeat, .*, got 'shuffle'"):
        resolve_prompt_edit("shuffle")


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (lambda names: Layout(()), "at least one block"),
        (lambda names: Layout((names[0], names[0])), "not name a block twice"),
        (lambda names: Layout((*names, "d9")), "got 'd9'"),
        (lambda names: Layout(names[:1], repeated=(names[1],)), "only blocks it shows"),
        (lambda names: Layout(names[:1], markers=frozenset({names[1]})), "only blocks it shows"),
    ],
)
def test_impossible_layouts_are_refused(
    item: Item, layout: Callable[[tuple[str, ...]], Layout], message: str
):
    with pytest.raises(ValueError, match=message):
        QA.render(item, layout(plain_layout(item).blocks))


def test_edit_of_an_item_without_blocks_is_refused():
    item = QA.items("closed_book")[0]
    with pytest.raises(ValueError, match="must have blocks"):
        resolve_prompt_edit("marker")(item, {})
