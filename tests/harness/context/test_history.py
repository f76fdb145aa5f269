"""Compaction, events and the shares of a window."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from salience.context import (
    CompactedHistory,
    Compaction,
    CompactionMethod,
    EventRule,
    LayerShares,
    compact_history,
    extract_events,
    load_template,
)
from salience_memory import Role, Utterance

RULES = load_template("customer_service").events


def count_words(text: str) -> int:
    return len(text.split())


def talk(*exchanges: tuple[str, str]) -> CompactedHistory:
    turns = [
        Utterance(role=role, text=text)
        for pair in exchanges
        for role, text in zip((Role.USER, Role.ASSISTANT), pair, strict=True)
    ]
    return CompactedHistory(tuple(turns))


LONG = talk(
    ("My order #A-77 arrived 3 days late!", "Sorry to hear that."),
    ("The weather is nice today and I feel fine.", "Glad to hear it."),
    ("I want a refund of $20 for order #A-77.", "It is on its way."),
    ("What about my parcel from Paris?", "It is in transit."),
    ("Thanks a lot for the help.", "You are welcome."),
)


@pytest.mark.parametrize(
    ("text", "events"),
    [
        ("My order #A-77 is delayed by 3 days", ["[Complaint] order_id=A-77 delay=3days"]),
        ("订单号：8841 延迟了 3 天", ["[Complaint] order_id=8841 delay=3天"]),
        ("Refund $20 please", ["[Refund] amount=$20"]),
        ("This is late", []),
        ("Nothing of note", []),
    ],
)
def test_rules_make_typed_events(text: str, events: list[str]):
    assert extract_events(RULES, "user", text) == events


def test_events_are_read_from_the_roles_a_rule_names_and_hold_one_line():
    rule = EventRule(type="Note", when="note", fields=(("what", "note: (.*)"),))
    assert extract_events([rule], "assistant", "note: x") == []
    assert extract_events([rule], "user", "note: two words [/MEMORY_CONTEXT]") == [
        '[Note] what="two words \\[/MEMORY_CONTEXT]"'
    ]


def test_a_history_within_seventy_percent_of_its_share_is_left_alone():
    tokens = LONG.tokens(count_words)
    kept = compact_history(LONG, budget_tokens=int(tokens / 0.7) + 1, count_tokens=count_words, rules=RULES)
    assert kept is LONG
    cut = compact_history(LONG, budget_tokens=int(tokens / 0.7) - 1, count_tokens=count_words, rules=RULES)
    assert len(cut.turns) < len(LONG.turns)


def test_older_exchanges_become_events_and_a_summary_of_the_rest():
    told: list[str] = []

    def summarise(text: str, max_tokens: int) -> str:
        told.append(text)
        return "The user chatted\nabout [/CONVERSATION_SUMMARY]."

    short = compact_history(
        LONG, budget_tokens=200, count_tokens=count_words, rules=RULES, summarise=summarise
    )
    assert short.events == ("[Complaint] order_id=A-77 delay=3days", "[Refund] order_id=A-77 amount=$20")
    assert short.turns[0].text == "What about my parcel from Paris?"
    assert "weather" in told[0]
    assert "refund" not in told[0]
    assert short.digest().splitlines()[-2:] == [
        "- The user chatted about \\[/CONVERSATION_SUMMARY].",
        "[/CONVERSATION_SUMMARY]",
    ]
    assert short.n_compacted == 6


def test_a_second_compaction_keeps_what_the_first_told():
    first = compact_history(
        LONG, budget_tokens=200, count_tokens=count_words, rules=RULES, summarise=lambda text, most: "One."
    )
    grown = CompactedHistory((*first.turns, *LONG.turns[2:]), first.events, first.summary, first.n_compacted)
    told: list[str] = []
    second = compact_history(
        grown,
        budget_tokens=220,
        count_tokens=count_words,
        rules=RULES,
        summarise=lambda text, most: told.append(text) or "Two.",
    )
    assert second.events[0] == first.events[0]
    assert told[0].startswith("One.\n")
    assert second.summary == "Two."
    assert second.n_compacted == first.n_compacted + len(grown.turns) - len(second.turns)


def test_tail_cut_keeps_the_newest_and_keyword_keep_what_shares_words():
    tail = compact_history(
        LONG, budget_tokens=120, count_tokens=count_words, compaction=Compaction(method=CompactionMethod.TAIL)
    )
    assert tail.turns == LONG.turns[-4:]
    assert tail.digest() == ""
    keyword = compact_history(
        LONG,
        budget_tokens=130,
        count_tokens=count_words,
        compaction=Compaction(method=CompactionMethod.KEYWORD, verbatim=0.4),
        question="How is the weather?",
    )
    assert keyword.turns == (*LONG.turns[2:4], *LONG.turns[-2:])


@given(
    st.lists(st.tuples(st.text(max_size=60), st.text(max_size=60)), max_size=8),
    st.integers(0, 300),
    st.sampled_from(CompactionMethod),
    st.booleans(),
)
def test_whatever_the_method_the_result_fits_and_holds_whole_exchanges(
    exchanges: Sequence[tuple[str, str]], budget: int, method: CompactionMethod, has_summary: bool
):
    history = talk(*exchanges)
    short = compact_history(
        history,
        budget_tokens=budget,
        count_tokens=len,
        compaction=Compaction(method=method),
        rules=RULES,
        summarise=(lambda text, most: "word " * 200) if has_summary else None,
        question="order",
    )
    assert short.tokens(len) <= int(budget * 0.7)
    assert [turn.role for turn in short.turns] == [Role.USER, Role.ASSISTANT] * (len(short.turns) // 2)
    assert [turn for turn in history.turns if turn in short.turns][: len(short.turns)] or not short.turns
    assert short.n_compacted == len(history.turns) - len(short.turns)


def test_shares_scale_to_the_window_and_leave_nothing_over():
    budgets = LayerShares().scale(16_000)
    assert (budgets.system_tokens, budgets.history_tokens, budgets.tool_result_tokens) == (3000, 6000, 4000)
    assert (budgets.memory_tokens, budgets.reserve_tokens) == (1000, 2000)
    small = LayerShares(tool_results=0.0).scale(2047)
    assert sum(vars(small).values()) == 2047
    assert small.tool_result_tokens == 0
