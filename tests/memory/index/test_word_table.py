import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from salience_memory.index.word_table import WordTable

WORDS = st.sets(st.sampled_from("abcdefgh"), max_size=6)


@given(texts=st.lists(WORDS, max_size=90), data=st.data())
def test_sums_are_those_of_the_words_through_erasing_and_compacting(
    texts: list[set[str]], data: st.DataObject
) -> None:
    table, weights = WordTable(), {"a": 0.1, "c": 0.2, "x": 8.0, "h": 0.3, "f": 0.7}
    for words in texts:
        table.put(sorted(words))
    gone = data.draw(st.sets(st.sampled_from(range(len(texts))))) if texts else set[int]()
    for row in gone:
        table.erase(row)
    kept = np.array([row for row in range(len(texts)) if row not in gone], dtype=np.int64)

    def expected(row: int) -> float:
        shared = math.fsum(weights.get(word, 0.0) for word in texts[row])
        return round(shared, 9) if row not in gone else 0.0

    rows = np.array(data.draw(st.permutations(range(len(texts)))), dtype=np.int64)
    assert table.sum_shared(weights, rows).tolist() == [expected(row) for row in rows.tolist()]
    table.compact(kept)
    table.put(["a", "c"])
    places = np.arange(len(kept) + 1)
    assert table.sum_shared(weights, places).tolist() == [*map(expected, kept.tolist()), 0.3]
    assert table.sum_shared({}, places).tolist() == [0.0] * len(places)
