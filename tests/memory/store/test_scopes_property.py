"""Random operations by random viewers: what is read never leaves its scope, its validity or its life."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from salience_memory import (
    Memory,
    MemoryExists,
    MemoryNotFound,
    MemoryState,
    MemoryStore,
    MemoryType,
    Scope,
    Viewer,
)

USERS = st.sampled_from([None, "ann", "bob"])
SESSIONS = st.sampled_from([None, "s", "t"])
VIEWERS = st.builds(Viewer, user_id=USERS, session_id=SESSIONS)
IDS = st.sampled_from([f"m{number}" for number in range(6)])
LIFETIMES = st.sampled_from([None, 1, 3])


class RandomStore(RuleBasedStateMachine):
    """Keeps beside the store a dictionary of what must be in it: the declaration and its state, by id."""

    @initialize()
    def open(self):
        self.folder = tempfile.TemporaryDirectory()
        self.now_ns = 1
        # Two processes' view of one file: one writes, both are asked.
        stores = [MemoryStore(Path(self.folder.name) / "m.db", clock=lambda: self.now_ns) for _ in "ab"]
        self.writer, self.reader = stores
        self.expected: dict[str, tuple[Memory, MemoryState]] = {}
        self.forgotten_contents: set[str] = set()
        self.seq = 0

    def teardown(self):
        if hasattr(self, "folder"):
            self.writer.close()
            self.reader.close()
            self.folder.cleanup()

    def visible(self, viewer):
        return {
            memory_id: memory
            for memory_id, (memory, state) in self.expected.items()
            if viewer.can_see(memory.scope, memory.user_id, memory.session_id)
        }

    def recallable(self, viewer):
        return {
            memory_id: memory.content
            for memory_id, memory in self.visible(viewer).items()
            if self.expected[memory_id][1] is MemoryState.ACTIVE
            and (memory.valid_until is None or self.now_ns < memory.valid_until)
        }

    @rule(viewer=VIEWERS, memory_id=IDS, word=st.integers(0, 2), lifetime=LIFETIMES)
    def declare(self, viewer, memory_id, word, lifetime):
        scope = Scope.SESSION if viewer.session_id else Scope.USER if viewer.user_id else Scope.GLOBAL
        memory = Memory(
            content=f"{memory_id} {word} of {viewer.user_id} {viewer.session_id}",
            memory_id=memory_id,
            type=MemoryType.SEMANTIC,
            scope=scope,
            user_id=viewer.user_id,
            session_id=viewer.session_id,
            valid_until=None if lifetime is None else self.now_ns + lifetime,
        )
        owner = (memory.scope, memory.user_id, memory.session_id)
        known = self.expected.get(memory_id)
        try:
            self.writer.declare([memory])
        except MemoryExists:
            assert known is not None
            assert known[0] != memory
            is_live = memory_id in self.recallable(viewer)
            assert is_live or owner != (known[0].scope, known[0].user_id, known[0].session_id)
        else:
            assert known is None or owner == (known[0].scope, known[0].user_id, known[0].session_id)
            self.expected[memory_id] = (memory, MemoryState.ACTIVE)

    @rule(viewer=VIEWERS, memory_id=IDS, word=st.integers(3, 5))
    def update(self, viewer, memory_id, word):
        visible = self.visible(viewer)
        try:
            self.writer.update(memory_id, viewer, changes={"content": f"new {word}"}, reason="edit")
        except MemoryNotFound:
            assert memory_id not in visible
        else:
            memory, state = self.expected[memory_id]
            self.expected[memory_id] = (memory.model_copy(update={"content": f"new {word}"}), state)
            assert memory_id in visible

    @rule(viewer=VIEWERS, memory_id=IDS, state=st.sampled_from(MemoryState))
    def set_aside(self, viewer, memory_id, state):
        visible = self.visible(viewer)
        act = self.writer.archive if state is MemoryState.ARCHIVED else self.writer.unarchive
        try:
            act(memory_id, viewer)
        except MemoryNotFound:
            assert memory_id not in visible
        else:
            assert memory_id in visible
            self.expected[memory_id] = (self.expected[memory_id][0], state)

    @rule(viewer=VIEWERS, memory_id=IDS)
    def forget(self, viewer, memory_id):
        was_visible = memory_id in self.visible(viewer)
        assert self.writer.forget(memory_id, viewer) == was_visible
        if was_visible:
            del self.expected[memory_id]

    @rule(user=st.sampled_from(["ann", "bob"]), session=st.sampled_from([None, "s", "t"]))
    def forget_all(self, user, session):
        scope = Scope.SESSION if session else Scope.USER
        viewer = Viewer(user_id=user, session_id=session)
        mine = [key for key, memory in self.visible(viewer).items() if memory.scope is scope]
        assert self.writer.forget_all(viewer, scope=scope) == len(mine)
        for key in mine:
            del self.expected[key]

    @rule(session=st.sampled_from(["s", "t"]), user=USERS)
    def end_session(self, session, user):
        viewer = Viewer(session_id=session, user_id=user)
        mine = [key for key, memory in self.visible(viewer).items() if memory.scope is Scope.SESSION]
        assert self.writer.end_session(session, user_id=user) == len(mine)
        for key in mine:
            del self.expected[key]

    @rule()
    def let_time_pass(self):
        self.now_ns += 1

    @rule(viewer=VIEWERS)
    def read(self, viewer):
        recallable = self.recallable(viewer)
        for store in (self.writer, self.reader):
            listed = {memory.memory_id: memory.content for memory in store.list(viewer)}
            found = store.get_many([f"m{number}" for number in range(6)], viewer)
            assert listed == recallable
            assert {key: memory.content for key, memory in found.items()} == recallable
            for memory_id in self.expected.keys() - self.visible(viewer).keys():
                try:
                    store.get(memory_id, viewer)
                except MemoryNotFound:
                    continue
                raise AssertionError(f"{viewer} must not see {memory_id}")

    @invariant()
    def projections_can_follow(self):
        if not hasattr(self, "folder"):
            return
        changes = self.reader.changes_since(self.seq)
        assert [change.seq for change in changes] == sorted({change.seq for change in changes})
        self.seq = self.reader.latest_seq()
        assert {row.memory_id for row in self.reader.iter_rows()} == self.expected.keys()
        for change in changes:
            if change.memory_id in self.expected:
                assert change.kind == "put"
            elif change.memory_id.startswith("m") and "-" not in change.memory_id:
                assert change.kind == "delete"


RandomStore.TestCase.settings = settings(max_examples=25, stateful_step_count=30)
TestRandomStore = RandomStore.TestCase
