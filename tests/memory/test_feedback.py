import pytest

from salience_memory import (
    Memory,
    MemoryNotFound,
    MemoryReadOnly,
    MemoryStore,
    MemoryType,
    Provenance,
    Scope,
    Viewer,
)
from salience_memory.clock import DAY_NS
from salience_memory.feedback import (
    CLAIMED_TRUST_LIMIT,
    apply_answer,
    guess_language,
    lower_corrected,
    mark_contradicted,
    write_disclaimer,
)
from salience_memory.references import Position, ReferenceScanner

ANN, BEN = Viewer(user_id="ann", session_id="s1"), Viewer(user_id="ben", session_id="s2")
CLAIMED = Provenance(source_id="turn:1")
VERIFIED = Provenance(source_id="file:1", verification="verified")


class Clock:
    ns = 20_000 * DAY_NS

    def __call__(self):
        return self.ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with MemoryStore(tmp_path / "m.db", clock=clock) as opened:
        yield opened


def declare(store, content, user="ann", **fields):
    scope = Scope.USER if user else Scope.GLOBAL
    fields = {"type": MemoryType.SEMANTIC, "provenance": CLAIMED} | fields
    return store.declare([Memory(content=content, scope=scope, user_id=user, **fields)])[0]


def references(text):
    scanner = ReferenceScanner()
    scanner.push(text)
    scanner.flush()
    return scanner.references


def cite(*memories, before="", after="and so on for a while"):
    return references(before + "".join(f'<memory_ref id="{m.memory_id}"/>' for m in memories) + after)


def test_a_reference_refreshes_without_verifying(store, clock):
    memory = declare(store, "The user likes tea.")
    clock.ns += 20 * DAY_NS
    assert store.get(memory.memory_id, ANN).freshness == 0.5
    told = apply_answer(store, ANN, cite(memory, before="some words here before it ", after=""))
    (used,) = told.used
    assert (used.freshness, used.used_ns, used.verified_ns) == (1.0, clock.ns, memory.verified_ns)
    assert (used.version, told.raised_ids) == (memory.version, ())


def test_a_reference_at_the_head_adds_trust_once_an_answer_and_up_to_the_limit(store):
    memory = declare(store, "The user likes tea.")
    told = apply_answer(store, ANN, cite(memory, memory))
    assert (told.raised_ids, told.used[0].trust) == ((memory.memory_id,), 0.65)
    assert told.positions == {Position.HEAD: 2, Position.MIDDLE: 0, Position.TAIL: 0}
    for _ in range(10):
        told = apply_answer(store, ANN, cite(memory))
    assert (told.raised_ids, told.used[0].trust) == ((), CLAIMED_TRUST_LIMIT)
    assert told.used[0].version == 5


@pytest.mark.parametrize(
    ("provenance", "trust", "reached"),
    [(VERIFIED, 0.98, 1.0), (None, 0.98, 1.0), (CLAIMED, 0.78, 0.8), (CLAIMED, 0.95, 0.95)],
)
def test_trust_is_bounded_by_how_the_content_came(store, provenance, trust, reached):
    memory = declare(store, "Closed on Mondays.", provenance=provenance, trust=trust)
    assert apply_answer(store, ANN, cite(memory)).used[0].trust == reached


def test_made_up_ids_and_other_peoples_are_reported_and_change_nothing(store):
    bens = declare(store, "Ben likes beer.", user="ben")
    told = apply_answer(
        store, ANN, references(f'<memory_ref id="{bens.memory_id}"/><memory_ref id="nope"/>x')
    )
    assert (told.used, told.unknown_ids) == ((), (bens.memory_id, "nope"))
    kept = store.get(bens.memory_id, BEN)
    assert (kept.trust, kept.used_ns) == (bens.trust, None)


def test_global_and_read_only_memories_keep_their_trust(store):
    everybodys = declare(store, "The office closes at six.", user=None, trust=0.5)
    locked = declare(store, "Never name rivals.", read_only=True, trust=0.5)
    told = apply_answer(store, ANN, cite(everybodys, locked))
    assert (told.raised_ids, [memory.trust for memory in told.used]) == ((), [0.5, 0.5])
    ids = [everybodys.memory_id, locked.memory_id]
    assert lower_corrected(store, ANN, ids, reason="corrected") == []
    assert [memory.trust for memory in store.get_many(ids, ANN).values()] == [0.5, 0.5]


def test_attention_refreshes_what_the_answer_does_not_cite(store, clock):
    seen, unseen = declare(store, "Seen."), declare(store, "Unseen.")
    told = apply_answer(store, ANN, (), masses={seen.memory_id: 0.2, unseen.memory_id: 0.01})
    assert [memory.memory_id for memory in told.used] == [seen.memory_id]
    assert (told.used[0].used_ns, told.used[0].trust) == (clock.ns, 0.6)
    assert store.get(unseen.memory_id, ANN).used_ns is None


@pytest.mark.parametrize("mass", [-0.1, 1.1, float("nan")])
def test_a_mass_that_is_no_share_is_refused(store, mass):
    memory = declare(store, "Seen.")
    with pytest.raises(ValueError, match="masses must be shares"):
        apply_answer(store, ANN, cite(memory), masses={memory.memory_id: mass})
    assert store.get(memory.memory_id, ANN).used_ns is None


def test_the_audit_log_gets_counts_and_no_content(store):
    memory = declare(store, "The user likes tea.")
    apply_answer(store, ANN, cite(memory), masses={memory.memory_id: 0.25}, request_id="r-1")
    (event,) = store.events(kind="feedback", request_id="r-1")
    assert event.facts["memory_ids"] == [memory.memory_id]
    assert event.facts["positions"] == {"head": 1, "middle": 0, "tail": 0}
    assert (event.facts["masses"], event.facts["raised"]) == ([0.25], 1)
    assert "tea" not in str(event.facts)


def test_a_correction_halves_trust_with_the_reason_in_the_history(store):
    memory, other = declare(store, "The user likes tea."), declare(store, "Ben likes beer.", user="ben")
    (lowered,) = lower_corrected(
        store, ANN, [memory.memory_id, other.memory_id, "gone"], reason="was corrected"
    )
    assert (lowered.memory_id, lowered.trust) == (memory.memory_id, 0.3)
    assert store.history(memory.memory_id, ANN)[-1].reason == "was corrected"
    assert store.get(other.memory_id, BEN).trust == 0.6


def test_a_change_by_others_meanwhile_is_not_lost(store, monkeypatch):
    memory = declare(store, "The user likes tea.")
    stale = store.get_many

    def get_many(ids, viewer, **options):
        found = stale(ids, viewer, **options)
        store.update(memory.memory_id, ANN, changes={"trust": 0.4}, reason="somebody else")
        return found

    monkeypatch.setattr(store, "get_many", get_many)
    (lowered,) = lower_corrected(store, ANN, [memory.memory_id], reason="corrected")
    assert lowered.trust == 0.2


def test_contradicting_behaviour_lowers_the_weight_until_verified(store, clock):
    memory = declare(store, "The user dislikes tea.", semantic_weight=0.9, trust=1.0)
    for _ in range(2):
        marked = mark_contradicted(store, ANN, memory.memory_id, now_ns=clock.ns, reason="bought tea")
        assert marked.effective_weight == pytest.approx(0.5 + 0.4 * 0.3)
    clock.ns += 1
    assert store.verify(memory.memory_id, ANN).effective_weight == pytest.approx(0.9)
    with pytest.raises(MemoryNotFound):
        mark_contradicted(store, BEN, memory.memory_id, now_ns=clock.ns, reason="bought tea")
    locked, everybodys = (
        declare(store, "Never name rivals.", read_only=True),
        declare(store, "Open.", user=None),
    )
    for memory in (locked, everybodys):
        with pytest.raises(MemoryReadOnly):
            mark_contradicted(store, ANN, memory.memory_id, now_ns=clock.ns, reason="named one")


def test_only_what_users_claim_needs_a_disclaimer(store):
    claimed, verified = declare(store, "A."), declare(store, "B.", provenance=VERIFIED)
    assert write_disclaimer([verified]) is None
    assert write_disclaimer([]) is None
    assert "not been verified" in write_disclaimer([verified, claimed])
    assert "尚未核实" in write_disclaimer([claimed], "zh")
    with pytest.raises(ValueError, match="language must be one of en, zh, got 'de'"):
        write_disclaimer([claimed], "de")
    assert apply_answer(store, ANN, cite(claimed), language="zh").disclaimer == write_disclaimer(
        [claimed], "zh"
    )


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("You like tea.", "en"),
        ("您喜欢茶。", "zh"),
        ("您喜欢 Python 吗", "zh"),
        ("", "en"),
        ("お茶が好き漢字", "en"),
        ("The sign 茶 means tea.", "en"),
    ],
)
def test_the_language_of_an_answer_is_told_by_its_script(text, language):
    assert guess_language(text) == language
