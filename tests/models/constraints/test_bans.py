"""Bans against brute force, tricks that get words past filters, and an adversary that samples at random."""

import itertools
import random
import re
import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from salience_kernels import AllowedBits, BannedIds, apply_constraint_mask
from salience_models.constraints.bans import DEAD, BanAutomaton, BanMasks, contains_banned, fold
from salience_models.constraints.bans.confusables import look_alikes
from salience_models.constraints.bans.exactness import compare_with_reference, prefixes_of
from salience_models.constraints.bans.folding import fold_character
from salience_models.constraints.bans.spellings import spell
from salience_models.constraints.bans.utf8 import completions

PHRASES = ["badger", "bad idea", "naïve", "straße", "ばか", "사과", "東京", "🔥🔥", "c++", "привет", "\x07"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def nasty_vocabulary(phrases, n_random, seed=0):
    """Every byte, disguised phrases and pieces of them at any byte, random bytes; some ids have no bytes."""
    draw = random.Random(seed)
    tokens = [bytes([value]) for value in range(256)]
    tokens += [
        b"",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe0\x9f",
        b" ",
        b".\n",
        None,
        b"ok \xf0",
    ]
    disguises = [
        str,
        str.upper,
        lambda text: unicodedata.normalize("NFD", text),
        lambda text: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text),
        lambda text: "\u200b".join(text),
        lambda text: "\u0301".join(text),
        lambda text: text + " ",
        lambda text: " " + text + "s",
        lambda text: "@".join(text.split("a")),
    ]
    for phrase, disguise in itertools.product(phrases, disguises):
        data = disguise(phrase).encode()
        for _ in range(6):
            start, end = sorted(draw.sample(range(len(data) + 1), 2))
            tokens.append(data[start:end])
        tokens += [data, data * 2]
    tokens += [draw.randbytes(draw.randint(2, 5)) for _ in range(n_random)]
    tokens += ["".join(draw.sample("abdgeri cz+", 3)).encode() for _ in range(n_random)]
    return (*tokens, None, b"end")


def reached(phrases, text, **options):
    automaton = BanAutomaton(phrases, **options)
    return automaton.advance_bytes(automaton.start, text.encode())


def is_caught(phrases, text, **options):
    """By the automaton; the checker must say the same."""
    automaton = BanAutomaton(phrases, **options)
    state = automaton.advance_bytes(automaton.start, text.encode())
    caught = state == DEAD or not automaton.may_end(state)
    assert caught == bool(contains_banned(text, phrases, **options))
    return caught


@given(TEXTS, TEXTS)
def test_fold_of_a_whole_is_the_folds_of_its_parts(first, second):
    assert fold(first + second) == fold(first) + fold(second)


@given(TEXTS)
def test_folding_twice_changes_nothing_and_accents_composed_or_not_fold_alike(text):
    assert fold(fold(text)) == fold(text)
    latin = "".join(c for c in text if ord(c) < 0x0250)
    assert fold(unicodedata.normalize("NFD", latin)) == fold(latin)


def test_fold_is_a_fixed_point_on_every_code_point_where_it_does_much():
    codes = [*range(0x3400), *range(0xF900, 0x10000), *range(0x1D400, 0x1D800)]
    assert [hex(code) for code in codes if fold(fold_character(chr(code))) != fold_character(chr(code))] == []


def test_marks_of_other_scripts_stay_and_those_of_europe_go():
    assert fold("É é e\u0301 ａ ﬁ ß Ω̂ ё") == "e e e a fi ss ω е"
    assert fold("ば") == "ば" != fold("は")
    assert fold("は\u3099") == "は\u3099"
    assert fold("과관") == "과관"
    assert fold("की") == "की"
    assert fold("a\u200b\ufe0f\u00ad\U000e0041b") == "ab"


@pytest.mark.parametrize("symbol", ["각", "ば", "ೋ", "آ", "ऩ"])
def test_a_symbol_may_be_spelled_in_every_canonically_equal_way(symbol):
    (spelled,) = spell(symbol)
    parts = unicodedata.normalize("NFD", symbol)
    assert symbol in spelled
    assert parts in spelled
    assert {unicodedata.normalize("NFC", text) for text in spelled} == {symbol}


def test_every_look_alike_is_its_own_fold():
    letters = "abcdefghijklmnopqrstuvwxyz"
    assert all(fold(other) == other for letter in letters for other in look_alikes(letter))
    assert set(look_alikes("1")) >= {"i", "l"}


@pytest.mark.parametrize(
    ("phrases", "text"),
    [
        (["badger"], "A ＢＡＤＧＥＲ!"),
        (["badger"], "b\u200ba\u2060dger"),
        (["badger"], "b\u0301a\u0308dg\u20e3er"),
        (["badger"], "𝐛𝐚𝐝𝐠𝐞𝐫"),
        (["badger"], "honeyBadger"),
        (["naïve"], "naive"),
        (["naive"], "nai\u0308ve"),
        (["strasse"], "STRAẞE"),
        (["ばか"], "は\u3099か"),
        (["は\u3099か"], "ばか"),
        (["バ"], "ﾊﾞ"),
        (["ばば"], "はばは\u3099"[1:] + "ば"),
        (["사과"], "\u1109\u1161과"),
        (["東京"], "in 東京 now"),
        (["\x07"], "beep\x07"),
        (["🔥🔥"], "🔥\ufe0f🔥"),
    ],
)
def test_a_disguised_phrase_is_caught(phrases, text):
    assert is_caught(phrases, text)


@pytest.mark.parametrize(
    ("phrases", "text"),
    [
        (["ばか"], "はか"),
        (["사과"], "사관학교"),
        (["badger"], "badge r"),
        (["badger"], "bаdger"),  # a Cyrillic а: a look-alike, without `confusables`
        (["🔥🔥"], "🔥 🔥"),
        (["पिता"], "पता"),
    ],
)
def test_a_neighbour_of_a_phrase_stays_allowed(phrases, text):
    assert not is_caught(phrases, text)


@pytest.mark.parametrize("text", ["bаdger", "b@dger", "BADG3R", "ВАDGЕR", "bαdgεr"])
def test_confusables_catch_look_alikes(text):
    assert is_caught(["badger"], text, confusables=True)
    assert not is_caught(["badger"], text)


def test_one_stands_for_i_and_for_l_but_they_do_not_stand_for_each_other():
    assert is_caught(["bill"], "b111", confusables=True)
    assert not is_caught(["bill"], "ball", confusables=True)
    assert not is_caught(["bill"], "blll", confusables=True)


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("cat", True),
        ("a cat.", True),
        ("(CAT)", True),
        ("cats", False),
        ("concat", False),
        ("concat cat", True),
        ("cat_1", False),
        ("cat\u200b", True),
        ("c\u200bat s", True),
        ("cát", True),
        ("cat猫", False),
        ("c++x", True),
        ("xc++", False),
    ],
)
def test_whole_words_meet_no_letter_at_either_side(text, caught):
    assert is_caught(["cat", "c++"], text, whole_word=True) == caught


def test_a_whole_word_may_go_on_but_not_end():
    automaton = BanAutomaton(["cat"], whole_word=True)
    state = automaton.advance_bytes(automaton.start, b"a cat")
    assert state != DEAD
    assert not automaton.may_end(state)
    assert automaton.may_end(automaton.advance_bytes(state, b"s"))
    assert automaton.advance_bytes(state, b" ") == DEAD


def test_a_text_may_not_end_inside_a_character():
    automaton = BanAutomaton(["x"])
    state = automaton.advance_bytes(automaton.start, "🔥".encode()[:3])
    assert not automaton.may_end(state)
    assert automaton.may_end(automaton.advance_bytes(state, "🔥".encode()[3:]))
    assert automaton.may_end(automaton.start)


@pytest.mark.parametrize(
    "data", [b"\xc0\x80", b"\xe0\x80", b"\xed\xa0", b"\xf0\x80", b"\xf4\x90", b"\xf5", b"\x80", b"\xe6a"]
)
def test_bytes_that_no_text_holds_are_dead_at_once(data):
    automaton = BanAutomaton(["x"])
    assert automaton.advance_bytes(automaton.start, data) == DEAD


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        ([], "phrases must hold at least one phrase, got none"),
        ("badger", "phrases must be a list of strings, got str 'badger'"),
        (["fine", 7], "phrases must be strings, got int 7"),
        (["fine", ""], "phrases must hold a visible character each, got an empty phrase"),
        (["\u0301\u200b"], "got '\u0301\\u200b', all marks or invisible characters"),
        (["a\udc80"], "got a lone surrogate in 'a\\udc80'"),
    ],
)
def test_a_phrase_that_cannot_be_banned_is_refused_by_name(phrases, message, unchecked_types):
    with pytest.raises(ValueError, match=re.escape(message)):
        BanAutomaton(phrases)
    with pytest.raises(ValueError, match=re.escape(message)):
        contains_banned("text", phrases)


@given(st.lists(st.integers(1, 4)), st.sampled_from(PHRASES))
def test_a_text_in_any_cuts_leads_to_the_same_state(cuts, phrase):
    automaton = BanAutomaton(PHRASES)
    data, state = f"so {phrase[:-1]}é🔥 {phrase}".encode(), automaton.start
    whole = [automaton.advance_bytes(automaton.start, data[:end]) for end in range(len(data) + 1)]
    at = 0
    for cut in cuts:
        state = automaton.advance_bytes(state, data[at : at + cut])
        at = min(at + cut, len(data))
        assert state == whole[at]
    assert whole[-1] == DEAD


def test_a_phrase_across_the_border_of_prompt_and_answer_is_caught_and_one_before_it_is_not():
    automaton = BanAutomaton(["badger", "!boom", "ger x"])
    assert automaton.advance_bytes(automaton.seed("a bad"), b"ger") == DEAD
    assert automaton.advance_bytes(automaton.seed("what a badger"), b" fine") != DEAD
    assert automaton.advance_bytes(automaton.seed("what a badger"), b" x") == DEAD
    assert automaton.seed("") == automaton.start


def test_a_whole_word_that_ends_the_prompt_is_not_the_answers():
    automaton = BanAutomaton(["cat", "!boom"], whole_word=True)
    assert automaton.may_end(automaton.seed("a cat"))
    assert automaton.advance_bytes(automaton.seed("a cat"), b" x") != DEAD
    assert automaton.advance_bytes(automaton.seed("a c"), b"at ") == DEAD
    assert automaton.advance_bytes(automaton.seed("con"), b"cat ") != DEAD
    assert automaton.advance_bytes(automaton.seed("cat!"), b"boom ") == DEAD


def test_a_character_that_only_phrases_could_complete_may_not_be_begun(unchecked_types):
    vocabulary = tuple(bytes([value]) for value in range(256))
    faces = [chr(code) for code in range(0x1F600, 0x1F640)]  # all that begins with f0 9f 98
    masks = BanMasks(BanAutomaton(faces), vocabulary)
    state = masks.automaton.advance_bytes(masks.automaton.start, b"\xf0\x9f")
    assert 0x98 in masks.banned(state).tolist()
    assert 0x99 not in masks.banned(state).tolist()
    words = BanMasks(BanAutomaton(["cat"], whole_word=True), vocabulary)
    state = words.automaton.advance_bytes(words.automaton.start, b"cat" + b"\xe2")
    assert 0x87 in words.banned(state).tolist()  # arrows end a word
    assert 0x80 not in words.banned(state).tolist()  # a zero-width joiner does not


@pytest.mark.parametrize(
    ("tail", "first", "last", "count"),
    [
        (b"\xc3", 0xC0, 0xFF, 64),
        (b"\xe0", 0x800, 0xFFF, 0x800),
        (b"\xed", 0xD000, 0xD7FF, 0x800),
        (b"\xf4", 0x100000, 0x10FFFF, 0x10000),
        (b"\xe2\x86", 0x2180, 0x21BF, 64),
        (b"\xf0\x9f\x98", 0x1F600, 0x1F63F, 64),
    ],
)
def test_completions_are_all_characters_that_begin_with_the_bytes(tail, first, last, count):
    found = list(completions(tail))
    assert (ord(found[0]), ord(found[-1]), len(found)) == (first, last, count)
    assert all(character.encode().startswith(tail) for character in found)


RULES = {
    "plain": (PHRASES, {}),
    "whole words": ([*PHRASES, "bad"], {"whole_word": True}),
    "a block of emoji": ([chr(code) for code in range(0x1F600, 0x1F640)][::-1], {}),
    "look-alikes": (["badger", "ばか"], {"confusables": True}),
    "escapes of JSON": (['a"b', "bad\n", "c++", "\\\x01"], {"in_json": True}),
    "whole words with escapes of JSON": (["cat", "bad idea"], {"whole_word": True, "in_json": True}),
    "whole words with look-alikes": (["badger", "bad idea", "각"], {"whole_word": True, "confusables": True}),
}


@pytest.mark.parametrize("name", RULES)
def test_masks_are_those_of_brute_force_after_every_prefix(name, unchecked_types):
    phrases, options = RULES[name]
    vocabulary = nasty_vocabulary(PHRASES, 150)
    masks = BanMasks(BanAutomaton(phrases, **options), vocabulary)
    extra = [
        b"b@d",
        "bа".encode(),
        "は\u3099".encode(),
        "\u1109\u1161".encode(),
        b"\xed\xa0",
        b"badger",
        b"bad ",
    ]
    prefixes = [
        *prefixes_of(phrases[:12])[::2],
        *extra,
        b"\xf0\x9f",
        b"badger\xe2",
        "bad \U0001f5ff".encode(),
    ]
    found = compare_with_reference([masks], prefixes)
    assert found.mismatches == []
    assert found.n_pairs >= (80_000 if phrases[0] == PHRASES[0] and len(phrases) > 10 else 15_000)


def test_the_intersection_of_two_rules_is_that_of_brute_force(unchecked_types):
    vocabulary = nasty_vocabulary(PHRASES, 100)
    rules = [
        BanMasks(BanAutomaton(PHRASES[:5]), vocabulary),
        BanMasks(BanAutomaton(PHRASES[3:], whole_word=True), vocabulary),
    ]
    found = compare_with_reference(rules, prefixes_of(PHRASES)[1::2])
    assert found.mismatches == []
    assert found.n_pairs >= 50_000


def test_a_wrong_mask_is_noticed():
    vocabulary = nasty_vocabulary(["badger"], 5)
    masks = BanMasks(BanAutomaton(["badger"]), vocabulary)
    masks._masks[masks.automaton.start] = BannedIds(torch.tensor([3], dtype=torch.int32))
    assert compare_with_reference([masks], [b""]).mismatches


def test_leading_space_variants_and_tokens_that_hold_a_phrase_are_masked():
    vocabulary = (b"badger", b" badger", b" Badgers", b"bad", b"ger", b" ger", b"g", None)
    masks = BanMasks(BanAutomaton(["badger"]), vocabulary)
    assert masks.banned(masks.automaton.start).tolist() == [0, 1, 2]
    begun = masks.advance(masks.automaton.start, 3)
    assert masks.banned(begun).tolist() == [0, 1, 2, 4]
    assert masks.banned(masks.advance(begun, 5)).tolist() == [0, 1, 2]
    assert masks.advance(begun, 4) == DEAD
    assert masks.advance(begun, 7) == begun  # an id without bytes adds no text


def test_an_emoji_of_four_tokens_can_be_written():
    vocabulary = tuple(bytes([value]) for value in range(256))
    masks = BanMasks(BanAutomaton(["🔥🔥", "x"]), vocabulary)
    state = masks.automaton.start
    for value in "🔥a🔥🙂".encode():
        assert value not in masks.banned(state).tolist()
        state = masks.advance(state, value)
    assert masks.automaton.may_end(state)


def test_chinese_phrases_split_across_tokens_are_caught():
    vocabulary = ("东".encode()[:2], "东".encode()[2:] + "京".encode()[:1], "京".encode()[1:], "方".encode())
    masks = BanMasks(BanAutomaton(["东京"]), vocabulary)
    state = masks.advance(masks.advance(masks.automaton.start, 0), 1)
    assert state != DEAD
    assert 2 in masks.banned(state).tolist()
    assert masks.advance(state, 2) == DEAD
    assert len(contains_banned("去东京", ["东京"])) == 1


def test_states_are_values_so_that_rows_never_meet():
    vocabulary = (b"bad", b"ger", b"x")
    masks = BanMasks(BanAutomaton(["badger"]), vocabulary)
    first = masks.advance(masks.automaton.start, 0)
    kept = masks.banned(first).tolist()
    second = masks.advance(masks.automaton.start, 2)
    masks.advance(first, 2)
    assert second == masks.automaton.start
    assert masks.banned(first).tolist() == kept == [1]


def test_masks_keep_their_meaning_when_the_caches_are_emptied(monkeypatch):
    monkeypatch.setattr("salience_models.constraints.bans.token_masks._MAX_CACHED_BYTES", 0)
    monkeypatch.setattr("salience_models.constraints.bans.token_masks._MAX_MOVES", 1)
    vocabulary = nasty_vocabulary(["badger"], 20)
    masks = BanMasks(BanAutomaton(["badger"]), vocabulary)
    assert compare_with_reference([masks], prefixes_of(["badger"])).mismatches == []


def test_a_thousand_phrases_cost_sets_only_where_texts_lead():
    words = ["".join(letters) for letters in itertools.product("abcdefghij", repeat=3)]
    automaton = BanAutomaton([f"project {word}" for word in words])
    assert automaton.n_sets == 1
    assert automaton.advance_bytes(automaton.start, b"the project jjj") == DEAD
    assert automaton.advance_bytes(automaton.start, b"the project jj ") != DEAD
    assert automaton.n_sets < 15


def test_a_phrase_of_many_kana_compiles_in_every_mixture_of_spellings():
    phrase = "ば" * 40
    automaton = BanAutomaton([phrase])
    mixed = "".join("は\u3099" if i % 3 else "ば" for i in range(40))
    assert automaton.advance_bytes(automaton.start, mixed.encode()) == DEAD
    assert contains_banned(mixed, [phrase]) == (phrase,)


def test_a_dead_state_has_no_mask_and_a_foreign_id_no_bytes(unchecked_types):
    masks = BanMasks(BanAutomaton(["x"]), (b"x", b"y"))
    with pytest.raises(ValueError, match="state must be one that a text may lead to, got DEAD"):
        masks.mask(DEAD)
    with pytest.raises(ValueError, match=re.escape("token_id must lie in [0, 2), got 2")):
        masks.advance(masks.automaton.start, 2)


def test_bits_replace_ids_where_most_tokens_are_banned():
    vocabulary = nasty_vocabulary(["badger"], 20)
    masks = BanMasks(BanAutomaton(["badger"]), vocabulary)
    inside = masks.automaton.advance_bytes(masks.automaton.start, b"\xf0\x9f")
    assert isinstance(masks.mask(inside), AllowedBits)
    assert masks.mask(inside) is masks.mask(inside)
    plain = (b"a",) * 40
    assert isinstance(BanMasks(BanAutomaton(["b"]), plain).mask(0), BannedIds)


@pytest.mark.parametrize("whole_word", [False, True])
def test_ten_thousand_tokens_from_random_logits_hold_no_banned_phrase(whole_word, unchecked_types):
    phrases = [*PHRASES, *(a + b for a, b in itertools.product("abdgeri", "xyzqw"))] + [
        f"zz{i}" for i in range(60)
    ]
    assert len(phrases) >= 100
    vocabulary = nasty_vocabulary(PHRASES, 200)
    masks = BanMasks(BanAutomaton(phrases, whole_word=whole_word), vocabulary)
    generator = torch.Generator().manual_seed(1)
    has_bytes = torch.tensor([bool(data) for data in vocabulary])
    states, texts = [masks.automaton.start] * 40, [b""] * 40
    free_text = b""
    step = 0
    while step < 250 or not all(map(masks.automaton.may_end, states)):
        logits = torch.rand(40, len(vocabulary), generator=generator).masked_fill(~has_bytes, -torch.inf)
        free_text += vocabulary[int(logits[0].argmax())]
        rows = [i for i, s in enumerate(states) if step < 250 or not masks.automaton.may_end(s)]
        logits = logits[rows]
        assert not apply_constraint_mask(logits, [masks.mask(states[i]) for i in rows]).any()
        for row, token_id in zip(rows, logits.argmax(1).tolist(), strict=True):
            states[row] = masks.advance(states[row], token_id)
            texts[row] += vocabulary[token_id]
        step += 1
    assert DEAD not in states
    options = {"whole_word": whole_word}
    assert [contains_banned(text.decode(), phrases, **options) for text in texts] == [()] * 40
    assert contains_banned(free_text.decode("utf-8", "ignore"), phrases, **options)
