from salience_memory import tokenize


def test_words_are_case_folded_and_compatibility_normalised():
    assert tokenize("The ﬁne CAFÉ, Straße") == ["the", "fine", "café", "strasse"]
    assert tokenize("cafe\u0301") == tokenize("café")


def test_joined_identifiers_stay_whole_and_come_in_parts():
    assert tokenize("4f0c-99-ab") == ["4f0c-99-ab", "4f0c", "99", "ab"]
    assert tokenize("retry_count v1.2.") == ["retry_count", "retry", "count", "v1.2", "v1", "2"]


def test_cjk_text_gives_single_signs_and_pairs():
    assert tokenize("工程师") == ["工", "程", "师", "工程", "程师"]
    assert tokenize("Python工程") == ["python", "工", "程", "工程"]


def test_vowel_signs_do_not_cut_a_word():
    assert tokenize("हिन्दी भाषा") == ["हिन्दी", "भाषा"]


def test_text_without_letters_or_digits_gives_nothing():
    assert tokenize(" \n—…!? ") == []
