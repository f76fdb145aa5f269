"""No record outside its scope, past its validity, archived or deleted is recalled, whatever was done."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from salience_experiments.bench.recall_property import (
    OWNERS,
    TAGS,
    TYPES,
    VIEWERS,
    WORDS,
    RecallWitness,
    check_recalls,
)

WORD_LISTS = st.lists(st.sampled_from(WORDS), max_size=3)
KINDS, TAG_NUMBERS = (st.none() | st.integers(0, len(options) - 1) for options in (TYPES, TAGS))
PICKS = st.integers(0, 99)


class RecallMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.witness = RecallWitness(Path(self.folder.name))

    @rule(
        owner=st.integers(0, len(OWNERS) - 1),
        words=WORD_LISTS,
        kind=st.integers(0, len(TYPES) - 1),
        tag=TAG_NUMBERS,
        lifetime_s=st.none() | st.integers(1, 60),
        has_vector=st.booleans(),
    )
    def declare(self, owner, words, kind, tag, lifetime_s, has_vector):
        self.witness.declare(owner, words, kind, tag, lifetime_s, has_vector)

    @rule(pick=PICKS, words=WORD_LISTS)
    def update(self, pick, words):
        self.witness.update(pick, words)

    @rule(pick=PICKS, is_archived=st.booleans())
    def archive(self, pick, is_archived):
        self.witness.archive(pick, is_archived)

    @rule(pick=PICKS)
    def forget(self, pick):
        self.witness.forget(pick)

    @rule(user=st.sampled_from(("ann", "ben")))
    def forget_user(self, user):
        self.witness.forget_user(user)

    @rule(session=st.sampled_from(("s1", "s2")))
    def end_session(self, session):
        self.witness.end_session(session)

    @rule(seconds=st.integers(1, 60))
    def advance(self, seconds):
        self.witness.advance(seconds)

    @rule()
    def sync(self):
        self.witness.sync()

    @rule(torn_bytes=st.none() | st.integers(0, 2000))
    def reopen(self, torn_bytes):
        self.witness.reopen(torn_bytes)

    @rule(
        viewer=st.integers(0, len(VIEWERS) - 1),
        words=WORD_LISTS,
        archived=st.booleans(),
        kind=KINDS,
        tag=TAG_NUMBERS,
    )
    def ask(self, viewer, words, archived, kind, tag):
        self.witness.ask(viewer, words, archived, kind, tag)

    @invariant()
    def everybody_finds_their_own_only(self):
        for viewer in range(len(VIEWERS)):
            self.witness.ask(viewer, ("river", "退款"), False, None, None)

    def teardown(self):
        self.witness.compare()
        self.witness.close()
        self.folder.cleanup()


RecallMachine.TestCase.settings = settings(max_examples=8, stateful_step_count=20, deadline=None)
TestRecall = RecallMachine.TestCase


def test_ten_thousand_recalls_by_chance():
    assert check_recalls(10_000, lambda line: None) >= 10_000
