import numpy as np
import pytest

from salience_memory.normalisation import content_words, is_same_text, make_slug, normalise, says_the_same

DIFFERENT = [
    ("Python 工程师", "Python 课程"),
    ("iPhone 15 手机壳", "iPhone 15 充电器"),
    ("The user likes C++.", "The user likes C."),
    ("The user likes C#.", "The user likes C."),
    ("Budget 10", "Budget 100"),
    ("Version 1.5", "Version 15"),
    ("The user likes tea.", "The user doesn't like tea."),
    ("我喜欢茶", "我不喜欢茶"),
    ("Anna manages Ben.", "Ben manages Anna."),
    ("Mood: 👍", "Mood: 👎"),
    ("résumé", "resume"),
    ("order 1042-A", "order 1042-B"),
    ("ชอบชา", "ชอบกาแฟ"),
]

SAME = [
    ("The user likes tea.", "the user  likes TEA!"),
    ("用户喜欢茶。", "用户喜欢茶！"),
    ("iPhone １５", "iPhone 15"),
    ("I don’t eat meat", "I don't eat meat."),
    ("“Quoted” words", '"quoted" words'),
    ("The user likes the tea, really.", "User likes tea."),
    ("STRASSE", "straße"),
]


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_what_differs_in_a_letter_a_digit_or_a_sign_stays_apart(first, second):
    assert not is_same_text(first, second)
    assert make_slug(first) != make_slug(second)
    # Not even an embedding that holds all texts for equal merges these.
    assert not says_the_same(first, second, lambda texts: np.ones((len(texts), 1), dtype=np.float32))


@pytest.mark.parametrize(("first", "second"), SAME)
def test_case_width_spacing_and_punctuation_are_set_aside(first, second):
    assert is_same_text(first, second)
    assert says_the_same(first, second)


def test_embeddings_decide_between_plain_wordings_alone():
    def embed(texts):
        angle = [0.0, 0.1]
        return np.array([[np.cos(a), np.sin(a)] for a in angle], dtype=np.float32)

    first, second = "The user enjoys tea.", "The user likes tea."
    assert says_the_same(first, second, embed)
    assert not says_the_same(first, second)
    assert not says_the_same(first, second, lambda texts: np.eye(2, dtype=np.float32))
    assert not says_the_same("The user met Anna.", "The user met Hanna.", embed)


def test_function_words_alone_are_kept():
    assert content_words("the") == ("the",)
    assert not is_same_text("the", "an")


def test_slugs_keep_every_script():
    assert make_slug("The Quarterly Report") == "quarterly-report"
    assert make_slug("季度报告") == "季度报告"
    assert make_slug("用 Python 写脚本") == "用-python-写脚本"
    assert normalise("  A\u3000B\n") == "a b"
