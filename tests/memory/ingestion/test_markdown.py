"""Markdown, clause by clause."""

import pytest

from salience_memory.errors import DocumentUnreadable
from salience_memory.ingestion import read_document

LEASE = """---
title: ignored
---
# Lease

The parties agree on
what follows.

## 3 Payment

3.1 Rent is due monthly.
3.2 The tenant shall not:

(a) smoke; and
(b) keep dogs.

1. First item
   goes on.
   - nested
2. Second item

## Rates

| Plan | Price | |
|---|---|---|
| Basic | 10 EUR | a |
| Pro | | b |
"""


def test_numbers_lists_and_tables_become_clauses_with_breadcrumbs_and_lines(read):
    clauses, refused = read(LEASE)
    assert refused == []
    assert [(clause.location, clause.key, clause.content) for clause in clauses] == [
        ("line:6-7", "Lease > ¶1", "The parties agree on what follows."),
        ("line:11", "Lease > 3 Payment > 3.1", "3.1 Rent is due monthly."),
        ("line:12; line:14", "Lease > 3 Payment > 3.2 > (a)", "3.2 The tenant shall not:\n(a) smoke; and"),
        ("line:12; line:15", "Lease > 3 Payment > 3.2 > (b)", "3.2 The tenant shall not:\n(b) keep dogs."),
        (
            "line:12; line:17-18",
            "Lease > 3 Payment > 3.2 > (b) > 1",
            "3.2 The tenant shall not:\n1. First item goes on.",
        ),
        ("line:12; line:19", "Lease > 3 Payment > 3.2 > (b) > 1 > •1", "3.2 The tenant shall not:\n- nested"),
        (
            "line:12; line:20",
            "Lease > 3 Payment > 3.2 > (b) > 2",
            "3.2 The tenant shall not:\n2. Second item",
        ),
        ("line:26", "Lease > Rates > table 1 > Basic", "Plan: Basic; Price: 10 EUR; a"),
        ("line:27", "Lease > Rates > table 1 > Pro", "Plan: Pro; b"),
    ]
    assert clauses[-2].value == {"Plan": "Basic", "Price": "10 EUR", "column 3": "a"}


def test_a_list_item_is_a_clause_with_what_announces_it(read):
    clauses, _ = read("You need:\n\n- flour\n- salt,\n  a little\n\nBake it.\n")
    assert [(clause.key, clause.content) for clause in clauses] == [
        ("¶1 > •1", "You need:\n- flour"),
        ("¶1 > •2", "You need:\n- salt, a little"),
        ("¶2", "Bake it."),
    ]


def test_chinese_articles_are_joined_without_spaces_and_a_reference_is_no_article(read):
    clauses, _ = read(
        "# 合同\n\n第五条 甲方应当在收到发票后\n三十日内付款。\n第六条 乙方根据\n第五条的规定开具发票。\n"
    )
    assert [(clause.key, clause.content) for clause in clauses] == [
        ("合同 > 第五条", "第五条 甲方应当在收到发票后三十日内付款。"),
        ("合同 > 第六条", "第六条 乙方根据第五条的规定开具发票。"),
    ]


def test_a_wrapped_reference_does_not_cut_a_clause(read):
    text = "4.1 The landlord may end the lease early, but only in cases that are named in\n4.2 and 4.3 of it."
    clauses, _ = read(f"{text}\n\n4.2 Next.\n")
    assert [clause.key for clause in clauses] == ["4.1", "4.2"]
    assert clauses[0].content.endswith("in 4.2 and 4.3 of it.")


def test_letters_and_roman_numerals_are_told_apart_by_what_came_before(read):
    items = "\n\n".join(f"({letter}) item {letter}." for letter in "abcdefghij")
    clauses, _ = read(f"1. Letters:\n\n{items}\n\n2. Numerals:\n\n(i) one.\n\n(ii) two.\n")
    assert [clause.key for clause in clauses] == [
        *(f"1 > ({letter})" for letter in "abcdefghij"),
        "2 > (i)",
        "2 > (ii)",
    ]


def test_code_stays_with_what_introduces_it(read):
    clauses, _ = read("Run this:\n\n```\n# not a heading\n1. not a clause\n```\n")
    assert [clause.content for clause in clauses] == ["Run this:\n# not a heading\n1. not a clause"]


def test_keys_are_unique(read):
    clauses, _ = read("# A\n\n1. One.\n\n# A\n\n1. Another one.\n")
    assert [clause.key for clause in clauses] == ["A > 1", "A > 1 #2"]


def test_line_endings_and_a_byte_order_mark_change_nothing(read):
    windows = read("\ufeff" + LEASE.replace("\n", "\r\n"))
    assert windows == read(LEASE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must hold text, got an empty file"),
        (b" \n\n", "must hold text, got an empty file"),
        (b"---\na: b\n---\n", "must hold text, got none"),
        (b"caf\xe9", "must be UTF-8 text, got byte 0xe9 at offset 3"),
        (b"a\0b", "must be Markdown text, got a binary file"),
    ],
)
def test_what_is_no_markdown_is_refused_in_one_sentence(tmp_path, data, message):
    path = tmp_path / "bad.md"
    path.write_bytes(data)
    with pytest.raises(DocumentUnreadable, match=message):
        read_document(path)
