import json

import pytest

from salience_memory import NOBODY, Episode, Scope, Viewer

ANN = Viewer(user_id="ann", session_id="s")
BOB = Viewer(user_id="bob", session_id="s")


def test_episodes_are_read_in_order_by_those_who_had_them(store, remember):
    store.declare([remember("x", memory_id="m")])
    for number, user in enumerate(["ann", "bob", None, "ann"]):
        turn = Episode(session_id="s", user_id=user, role="user", text=f"turn {number}", ns=number)
        episode_id = store.append_episode(turn)
    store.link_episode(episode_id, ["m"])
    assert [episode.text for episode in store.episodes(ANN, "s")] == ["turn 0", "turn 2", "turn 3"]
    assert [episode.text for episode in store.episodes(ANN, "s", limit=2)] == ["turn 2", "turn 3"]
    assert store.episodes(ANN, "s")[-1].memory_ids == ("m",)
    later = Viewer(user_id="ann", session_id="later")
    assert [episode.text for episode in store.episodes(later, "s")] == ["turn 0", "turn 3"]
    assert store.episodes(NOBODY, "s") == store.episodes(ANN, "t") == []
    store.link_episode(999, ["m"])
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        store.episodes(ANN, "s", limit=0)


def test_a_tasks_state_is_replaced_and_seen_by_its_owner(store, clock):
    store.set_task(ANN, "order", {"id": 7}, "open")
    clock.ns += 1
    done = store.set_task(ANN, "order", {"id": 7}, "done")
    assert store.task(ANN, "order") == done
    assert (done.status, done.scope, done.updated_ns) == ("done", Scope.SESSION, clock.ns)
    assert store.task(BOB, "order") is None
    assert store.task(Viewer(user_id="ann"), "order") is None
    lasting = store.set_task(ANN, "order", None, "waiting", scope=Scope.USER)
    assert store.task(ANN, "order") == done
    assert store.task(Viewer(user_id="ann"), "order") == lasting
    assert store.tasks(ANN) == [done, lasting]
    assert store.task(ANN, "unknown") is None


def test_tasks_without_owner_or_words_are_refused(store):
    with pytest.raises(ValueError, match="viewer must name the owner of a task of scope user"):
        store.set_task(NOBODY, "order", 1, "open")
    with pytest.raises(ValueError, match="viewer must name the owner of a task of scope session"):
        store.set_task(Viewer(user_id="ann"), "order", 1, "open", scope=Scope.SESSION)
    with pytest.raises(ValueError, match="'all' is not a valid Scope"):
        store.set_task(ANN, "order", 1, "open", scope="all")
    with pytest.raises(ValueError, match="status must hold text, got ' '"):
        store.set_task(ANN, "order", 1, " ")
    with pytest.raises(ValueError, match="value must be JSON with finite numbers"):
        store.set_task(ANN, "order", float("inf"), "open")
    assert store.tasks(ANN) == []


def test_events_hold_facts_and_the_clocks_time_beside_them(store, clock):
    facts = {"memory_ids": ["客户 7"], "truncations": [{"memory_id": "m 1", "section": "Task"}], "tokens": 12}
    first = store.append_event("render", "r1", facts)
    clock.ns += 3
    second = store.append_event("generation", "r1", {"response_sha256": "ab" * 32})
    store.append_event("render", "r2", {})
    events = store.events(request_id="r1")
    assert [(event.event_id, event.kind, event.ns) for event in events] == [
        (first, "render", clock.ns - 3),
        (second, "generation", clock.ns),
    ]
    assert events[0].facts == facts
    assert str(clock.ns) not in json.dumps(events[1].facts)
    assert [event.request_id for event in store.events(kind="render")] == ["r1", "r2"]
    assert [event.event_id for event in store.events(after=first, limit=1)] == [second]


@pytest.mark.parametrize(
    "facts",
    [
        {"text": "Ann likes tea."},
        {"deep": [{"note": "她喜欢茶"}]},
        {"hash": "a" * 129},
        {"Ann likes tea": 1},
        {"memory_ids": {"said": "Ann likes tea."}},
    ],
)
def test_content_is_refused_by_the_audit_log(store, facts):
    with pytest.raises(ValueError, match="the audit log never holds content"):
        store.append_event("render", "r1", facts)
    with pytest.raises(ValueError, match="request_id must be"):
        store.append_event("render", "two words", {})
    assert store.events() == []


def test_forgetting_leaves_the_audit_log(store, remember):
    store.declare([remember("x", memory_id="m")])
    store.append_event("render", "r", {"memory_ids": ["m"]})
    store.forget("m", Viewer(user_id="ann"))
    assert len(store.events()) == 1
