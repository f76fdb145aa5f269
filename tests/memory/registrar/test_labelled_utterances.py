"""Precision and recall of the shipped rules on labelled utterances; memory/README.md has the figures."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from salience_memory.registrar import Turn, read_utterance, shipped_rule_packs


def load(name):
    return yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))


DATA = load("labelled_utterances.yaml")
UNSEEN = load("unseen_utterances.yaml")

# Of each trigger: right, predicted, wanted. Floors: a change may only make them better.
TUNE = {
    "preference": (35, 35, 35),
    "constraint": (23, 23, 23),
    "task": (22, 22, 22),
    "entity": (31, 31, 31),
    "correction": (18, 18, 18),
    "clarify": (14, 14, 14),
}
HELD_OUT = {
    "preference": (16, 17, 18),
    "constraint": (11, 11, 11),
    "task": (10, 10, 11),
    "entity": (13, 13, 15),
    "correction": (8, 8, 9),
    "clarify": (7, 8, 7),
}
UNSEEN_FLOORS = {
    "preference": (5, 9, 14),
    "constraint": (3, 4, 11),
    "task": (4, 4, 11),
    "entity": (1, 1, 12),
    "correction": (2, 2, 9),
    "clarify": (1, 1, 7),
}

CONFUSED = {
    "I'm more of a tea person.": {"clarify"},
    "Use metric units for me from here on.": set(),
    "I study physics at ETH.": set(),
    "I run a small bakery in Leeds.": set(),
    "I prefer not to say.": {"preference"},
    "周五之前我得提交申请书。": set(),
    "不对不对，是周二。": set(),
}
UNSEEN_WRONGLY_TAKEN = {
    "Yeah sure, because I absolutely adore filling in the same form three times.": {"preference"},
    "Never mind, I found it.": {"constraint"},
    "我们部门新来了个实习生，叫林小雨，以后报表她来做": {"preference"},
    "以后就都按那个来吧": {"preference"},
    "以后有问题都找他": {"preference"},
}


def items(split):
    for labels in (DATA | UNSEEN)[split].values():
        for label, utterances in labels.items():
            for utterance in utterances:
                entry = {"text": utterance} if isinstance(utterance, str) else utterance
                yield entry, {label, *entry.get("also", ())} - {"none"}


def predict(entry):
    turns = []
    for line in entry.get("turns", ()):
        role, _, text = line.partition(": ")
        turns.append(Turn(role=role, text=text))
    reading = read_utterance(entry["text"], shipped_rule_packs(), turns)
    return {trigger.value for trigger in reading.triggers} | ({"clarify"} if reading.must_ask else set())


@pytest.mark.parametrize(
    ("split", "floors"), [("tune", TUNE), ("held_out", HELD_OUT), ("unseen", UNSEEN_FLOORS)]
)
def test_precision_and_recall_do_not_fall(split, floors):
    right, predicted, wanted = Counter(), Counter(), Counter()
    for entry, labels in items(split):
        found = predict(entry)
        right.update(found & labels)
        predicted.update(found)
        wanted.update(labels)
    assert set(wanted) == set(floors)
    for trigger, (hits, guesses, total) in floors.items():
        assert wanted[trigger] == total
        assert right[trigger] / predicted[trigger] >= hits / guesses, trigger
        assert right[trigger] / wanted[trigger] >= hits / total, trigger


def test_the_confusions_published_are_the_confusions_there_are():
    confused = {
        entry["text"]: predict(entry)
        for split in DATA
        for entry, labels in items(split)
        if predict(entry) != labels
    }
    assert confused == CONFUSED


def test_the_unseen_set_off_only_the_wrong_triggers_published():
    wrong = {entry["text"]: predict(entry) - labels for entry, labels in items("unseen")}
    assert {text: triggers for text, triggers in wrong.items() if triggers} == UNSEEN_WRONGLY_TAKEN


def test_the_set_is_large_balanced_and_a_third_of_it_held_out():
    counts = {split: sum(1 for _ in items(split)) for split in DATA}
    assert sum(counts.values()) >= 200
    assert counts["held_out"] / sum(counts.values()) >= 0.32
    texts = [entry["text"] for split in DATA | UNSEEN for entry, _ in items(split)]
    assert len(texts) == len(set(texts))
    for languages in (DATA | UNSEEN).values():
        sizes = {language: sum(map(len, labels.values())) for language, labels in languages.items()}
        assert min(sizes.values()) / max(sizes.values()) > 0.7
