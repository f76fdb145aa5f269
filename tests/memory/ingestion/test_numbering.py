"""Which beginnings of a line are clause numbers, and how they count."""

import pytest

from salience_memory.ingestion.numbering import parse_label


@pytest.mark.parametrize(
    ("line", "text", "rest", "readings"),
    [
        ("1. Rent", "1", "Rent", [(".1:1", (1,))]),
        ("3.2 Rent", "3.2", "Rent", [(".1:2", (3, 2))]),
        ("3.2.10. Rent", "3.2.10", "Rent", [(".1:3", (3, 2, 10))]),
        ("(a) Rent", "(a)", "Rent", [("()a", (1,))]),
        ("(bb) Rent", "(bb)", "Rent", [("()a", (28,))]),
        ("(i) Rent", "(i)", "Rent", [("()a", (9,)), ("()i", (1,))]),
        ("(iv) Rent", "(iv)", "Rent", [("()i", (4,))]),
        ("2) Rent", "2)", "Rent", [(")1:1", (2,))]),
        ("Article 5 Rent", "Article 5", "Rent", [("article 1:1", (5,))]),
        ("ARTICLE IV", "ARTICLE IV", "", [("article I", (4,))]),
        ("Section 3.2: Rent", "Section 3.2", "Rent", [("section 1:2", (3, 2))]),
        ("§ 7 Rent", "§ 7", "Rent", [("§ 1:1", (7,))]),
        ("第五条 租金", "第五条", "租金", [("第条", (5,))]),
        ("第二十一章　租金", "第二十一章", "租金", [("第章", (21,))]),
        ("第 12 条 租金", "第12条", "租金", [("第条", (12,))]),
        ("第一百零二条 租金", "第一百零二条", "租金", [("第条", (102,))]),
        ("一、租金", "一、", "租金", [("、一", (1,))]),
        ("（二）租金", "(二)", "租金", [("()一", (2,))]),
        ("③租金", "③", "租金", [("①", (3,))]),
        ("• Rent", "•", "Rent", [("bullet •", ())]),
    ],
)
def test_a_number_is_read_with_its_value(line, text, rest, readings):
    label = parse_label(line)
    assert label is not None
    assert (label.text, label.rest) == (text, rest)
    assert [(reading.style, reading.values) for reading in label.readings][: len(readings)] == readings
    assert not label.is_weak


@pytest.mark.parametrize(
    "line",
    [
        "2024. was a year",
        "3.14159 is pi",
        "Section 3.2, which",
        "section a of it",
        "10.000 euros",
        "-5 °C",
        "e.g. this",
    ],
)
def test_what_only_looks_like_a_number_is_none(line):
    assert parse_label(line) is None


@pytest.mark.parametrize(
    "line", ["5 litres of milk", "A. Smith wrote it", "Section 3 applies here", "第五条的规定适用"]
)
def test_what_may_be_running_text_counts_only_in_sequence(line):
    label = parse_label(line)
    assert label is not None
    assert label.is_weak
