import pytest

from salience_models.text.messages import Message, TextSpan, check_names, sort_spans


@pytest.mark.parametrize(("start", "end"), [(3, 3), (4, 2), (-1, 2)])
def test_span_without_characters_is_refused_by_name(start: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"'sky' must hold at least one character, got \["):
        TextSpan("sky", start, end)


def test_span_without_name_is_refused() -> None:
    with pytest.raises(ValueError, match="name of a span must not be empty"):
        TextSpan("", 0, 1)


def test_span_past_the_end_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'sky' must end within the text's 3 characters, got \[1, 4\)"):
        Message("user", "abc", (TextSpan("sky", 1, 4),))


def test_overlapping_spans_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'a' \[0, 3\) and 'b' \[2, 4\)"):
        sort_spans([TextSpan("b", 2, 4), TextSpan("a", 0, 3)], 4)


def test_duplicate_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unique, got 'a' twice"):
        check_names([TextSpan("a", 0, 1), TextSpan("b", 1, 2), TextSpan("a", 2, 3)])


def test_spans_of_a_message_are_put_in_order() -> None:
    message = Message("user", "abcd", (TextSpan("late", 2, 4), TextSpan("early", 0, 2)))
    assert [span.name for span in message.spans] == ["early", "late"]


@pytest.mark.parametrize("role", ["", "us er", "user<|im_end|>", "user\n", "1"])
def test_role_that_could_break_out_of_the_template_is_refused(role: str) -> None:
    with pytest.raises(ValueError, match="role must be a letter"):
        Message(role, "hello")
