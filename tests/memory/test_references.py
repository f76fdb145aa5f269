import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience_memory.references import (
    Position,
    Reference,
    ReferenceScanner,
    count_positions,
    format_reference,
)

TAG = '<memory_ref id="m-1" type="semantic"/>'


def scan(text, cuts=()):
    scanner = ReferenceScanner()
    bounds = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(bounds)]
    shown = "".join(scanner.push(piece) for piece in pieces) + scanner.flush()
    return shown, scanner


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"You like tea {TAG}.", "You like tea."),
        (f"You like tea{TAG}.", "You like tea."),
        (f"You {TAG} like tea", "You like tea"),
        (f"{TAG}You like tea", "You like tea"),
        (f"{TAG} You like tea", " You like tea"),
        (f"您喜欢茶{TAG}。", "您喜欢茶。"),
        (f"tea {TAG}{TAG} and", "tea and"),
        (f"tea {TAG}\nnext", "tea\nnext"),
        (f"tea {TAG}", "tea"),
        ("a < b <memory> <memory_reference/> c", "a < b <memory> <memory_reference/> c"),
        ("x <mem", "x <mem"),
        ("two  spaces   stay  ", "two  spaces   stay  "),
        ("<<<", "<<<"),
        (f"<{TAG}", "<"),
        ("", ""),
    ],
)
def test_references_are_hidden_and_all_else_shown(text, shown):
    assert scan(text)[0] == shown


@pytest.mark.parametrize(
    ("tag", "memory_id", "kind"),
    [
        (TAG, "m-1", "semantic"),
        ('<memory_ref type="x" id="m-1">', "m-1", "x"),
        ("<MEMORY_REF id='m-1' />", "m-1", None),
        ('<memory_ref\n  id = "m-1"\n/>', "m-1", None),
        ("<memory_ref id=“m-1”/>", "m-1", None),
        ("<memory_ref id=m-1 type=task/>", "m-1", "task"),
        (format_reference('a<"b">&c', "task"), 'a<"b">&c', "task"),
    ],
)
def test_forms_that_models_write_are_read(tag, memory_id, kind):
    shown, scanner = scan(f"x{tag}y")
    assert shown == "xy"
    assert [(found.memory_id, found.type) for found in scanner.references] == [(memory_id, kind)]
    assert scanner.malformed == 0


@pytest.mark.parametrize("tag", ["<memory_ref/>", '<memory_ref id=""/>', '<memory_ref type="x"/>'])
def test_a_reference_without_an_id_is_hidden_and_counted(tag):
    shown, scanner = scan(f"x{tag}y")
    assert (shown, scanner.references, scanner.malformed) == ("xy", (), 1)


def test_a_reference_cut_off_by_the_end_is_hidden():
    shown, scanner = scan('tea <memory_ref id="m-')
    assert (shown, scanner.malformed) == ("tea", 1)


def test_what_never_closes_is_text_after_all():
    text = "<memory_ref " + "x" * 2000
    assert scan(text)[0] == text
    assert scan("<memory_ref is a name, a < b")[0] == "<memory_ref is a name, a < b"


def test_positions_are_thirds_of_the_visible_answer():
    text = f"{TAG}abc<memory_ref id='m-2'/>def{TAG}ghi{TAG}"
    _, scanner = scan(text)
    assert [found.offset for found in scanner.references] == [0, 3, 6, 9]
    positions = [found.position for found in scanner.references]
    assert positions == [Position.HEAD, Position.MIDDLE, Position.TAIL, Position.TAIL]
    assert count_positions(scanner.references) == {Position.HEAD: 1, Position.MIDDLE: 1, Position.TAIL: 2}
    assert Reference("m", None, 0, 0).position is Position.HEAD


pieces = st.lists(
    st.sampled_from([TAG, "<memory_ref id='2'/>", "<", "a ", " ", "。", "\n", "<mem", ">", "<memory_ref "])
)


@given(pieces.map("".join), st.data())
def test_the_cuts_change_nothing(text, data):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    whole, scanner = scan(text)
    cut, cut_scanner = scan(text, cuts)
    assert (cut, cut_scanner.references, cut_scanner.malformed) == (
        whole,
        scanner.references,
        scanner.malformed,
    )
    assert TAG not in whole


@given(st.text())
def test_text_without_references_is_shown_to_the_character(text):
    if "<memory_ref" not in text.lower():
        assert scan(text, range(len(text)))[0] == text
