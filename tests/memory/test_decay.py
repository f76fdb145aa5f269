import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from salience_memory import MemoryType, Scope, StoredMemory
from salience_memory.clock import DAY_NS, to_ns
from salience_memory.decay import (
    PREFERENCE_TAG,
    AgeStep,
    DecayPolicy,
    assess,
    compute_freshness,
    is_expired,
    is_long_lived_preference,
)

BIRTH = to_ns("2026-03-01T00:00:00Z")


def stored(**fields):
    defaults = {
        "content": "The user likes tea.",
        "type": MemoryType.SEMANTIC,
        "scope": Scope.USER,
        "user_id": "ann",
        "seq": 1,
        "version": 1,
        "created_ns": BIRTH,
        "updated_ns": BIRTH,
        "verified_ns": BIRTH,
    }
    return StoredMemory(**defaults | fields)


def after(days):
    return BIRTH + round(days * DAY_NS)


@pytest.mark.parametrize(
    ("days", "freshness", "archive"),
    [
        (0, 1.0, False),
        (7, 1.0, False),
        (7.01, 0.5, False),
        (30, 0.5, False),
        (30.01, 0.2, False),
        (90, 0.2, False),
        (90.01, 0.0, True),
    ],
)
def test_freshness_falls_by_steps_and_ends_in_the_archive(days, freshness, archive):
    standing = assess(stored(), after(days))
    assert (standing.freshness, standing.should_archive) == (freshness, archive)
    assert standing.is_renderable is not archive
    assert bool(standing.reasons) is (freshness < 1.0)


def test_a_step_ends_at_its_last_nanosecond():
    assert assess(stored(), after(7)).freshness == 1.0
    assert assess(stored(), after(7) + 1).freshness == 0.5


def test_use_and_verification_make_young_again():
    old = after(20)
    assert compute_freshness(stored(used_ns=after(19)), old) == 1.0
    assert compute_freshness(stored(verified_ns=after(19)), old) == 1.0
    assert compute_freshness(stored(), old) == 0.5


def test_steps_can_be_set_by_type():
    steps = (AgeStep(until_days=1, freshness=0.9),)
    policy = DecayPolicy(steps_by_type={MemoryType.EPISODIC: steps})
    assert assess(stored(type=MemoryType.EPISODIC), after(1), policy).freshness == 0.9
    assert assess(stored(type=MemoryType.EPISODIC), after(2), policy).should_archive
    assert assess(stored(), after(2), policy).freshness == 1.0


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (AgeStep(until_days=7, freshness=1.0), AgeStep(until_days=7, freshness=0.5)),
        (AgeStep(until_days=7, freshness=0.5), AgeStep(until_days=9, freshness=0.6)),
    ],
)
def test_steps_out_of_order_are_refused(steps):
    with pytest.raises(ValidationError, match="steps must"):
        DecayPolicy(steps=steps)
    with pytest.raises(ValidationError, match="task must"):
        DecayPolicy(steps_by_type={MemoryType.TASK: steps})


def test_expiry_is_the_very_nanosecond_and_hard():
    memory = stored(valid_until=after(10))
    assert not is_expired(memory, after(10) - 1)
    assert is_expired(memory, after(10))
    standing = assess(memory, after(10))
    assert (standing.freshness, standing.is_renderable, standing.needs_verification) == (0.0, False, False)
    assert not assess(stored(valid_until=after(10), pinned=True), after(10)).is_renderable
    bound = stored(valid_until=after(10), type=MemoryType.CONSTRAINT)
    assert not assess(bound, after(10)).is_renderable


def test_expiry_is_in_utc_whatever_the_offset_for_display():
    # 23:30 on the 9th in New York is the 10th in UTC: an expiry by local days would be a day off.
    until = to_ns("2026-03-09T23:30:00-04:00")
    for offset in (-240, 0, 840):
        memory = stored(valid_until=until, timezone_offset_min=offset)
        assert not is_expired(memory, to_ns("2026-03-10T03:29:59Z"))
        assert is_expired(memory, to_ns("2026-03-10T03:30:00Z"))
    freshness = {compute_freshness(stored(timezone_offset_min=offset), after(7)) for offset in (-720, 0, 840)}
    assert freshness == {1.0}


def test_naive_times_are_refused():
    with pytest.raises(ValidationError, match="offset from UTC"):
        stored(valid_until="2026-03-09T23:30:00")


def test_freshness_is_the_age_step_times_the_fraction_of_the_lifetime_left():
    memory = stored(valid_until=after(40), stale_after=1.0)
    assert assess(memory, after(4)).freshness == pytest.approx(0.9)
    assert assess(memory, after(10)).freshness == pytest.approx(0.5 * 0.75)


def test_past_stale_after_it_is_not_rendered_until_verified():
    memory = stored(valid_until=after(8))
    assert assess(memory, after(6)).is_renderable
    standing = assess(memory, after(6) + 1)
    assert (standing.is_stale, standing.is_renderable, standing.needs_verification) == (True, False, True)
    assert assess(memory.model_copy(update={"verified_ns": after(6) + 1}), after(7)).is_renderable
    # A verification before it went stale does not count for after.
    assert assess(memory.model_copy(update={"verified_ns": after(5)}), after(7)).is_stale


@pytest.mark.parametrize("fields", [{"type": MemoryType.CONSTRAINT}, {"pinned": True}])
def test_constraints_and_pinned_rows_do_not_age(fields):
    memory = stored(valid_until=after(400), tags=(PREFERENCE_TAG,), **fields)
    standing = assess(memory, after(399))
    assert (standing.freshness, standing.is_renderable, standing.needs_verification) == (1.0, True, False)


def test_a_long_lived_preference_unverified_for_thirty_days_keeps_a_tenth():
    memory = stored(tags=(PREFERENCE_TAG,), used_ns=after(31))
    assert assess(memory, after(30)).freshness == 1.0
    standing = assess(memory, after(31))
    assert (standing.freshness, standing.needs_verification, standing.is_renderable) == (0.1, True, True)
    verified = memory.model_copy(update={"verified_ns": after(31)})
    assert assess(verified, after(31)).freshness == 1.0


def test_the_tenth_is_of_the_excess_not_of_what_age_left():
    assert assess(stored(tags=(PREFERENCE_TAG,)), after(60)).freshness == 0.1


def test_a_short_lived_preference_is_not_asked_about():
    assert is_long_lived_preference(stored(tags=(PREFERENCE_TAG,)))
    assert not is_long_lived_preference(stored(tags=(PREFERENCE_TAG,), valid_until=after(30)))
    assert not is_long_lived_preference(stored())


def test_contradicting_behaviour_leaves_three_tenths_until_verified():
    tags = (PREFERENCE_TAG, f"contradicted:{after(1)}")
    assert assess(stored(tags=tags), after(2)).freshness == pytest.approx(0.3)
    assert assess(stored(tags=tags), after(2)).needs_verification
    assert assess(stored(tags=(*tags, f"contradicted:{after(2)}")), after(2)).freshness == pytest.approx(0.3)
    assert assess(stored(tags=tags, verified_ns=after(2)), after(2)).freshness == 1.0
    weight = stored(tags=tags, semantic_weight=0.9).model_copy(
        update={"freshness": assess(stored(tags=tags), after(2)).freshness}
    )
    assert weight.effective_weight == pytest.approx(0.5 + 0.4 * 0.3)


def test_a_clock_set_back_ages_nothing():
    assert compute_freshness(stored(valid_until=after(50)), after(-3)) == 1.0


days = st.floats(0, 400, allow_nan=False)


@given(days, days, st.none() | days, st.booleans(), st.booleans())
def test_freshness_is_a_share_and_never_grows_with_time(first, second, until, is_preference, is_pinned):
    memory = stored(
        valid_until=None if until is None else after(until),
        tags=(PREFERENCE_TAG,) if is_preference else (),
        pinned=is_pinned,
    )
    early, late = (assess(memory, after(moment)) for moment in sorted((first, second)))
    assert 1.0 >= early.freshness >= late.freshness >= 0.0
    assert early.is_renderable or not late.is_renderable
