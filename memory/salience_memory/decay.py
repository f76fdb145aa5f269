"""Decay: how far a stored memory still holds, computed from its timestamps when it is read.

Every figure is a function of the memory, the moment and the policy. No row is rewritten as time passes, and
days are spans of 86,400 seconds of UTC; a memory's `timezone_offset_min` is for display, without a say here.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from salience_memory.clock import DAY_NS
from salience_memory.records import Memory, MemoryType, StoredMemory

__all__ = [
    "CONTRADICTED_TAG",
    "PREFERENCE_TAG",
    "AgeStep",
    "DecayPolicy",
    "Standing",
    "assess",
    "compute_freshness",
    "is_expired",
    "is_long_lived_preference",
]

PREFERENCE_TAG = "kind:preference"
"""Marks what a user likes, dislikes or wants done a certain way."""

CONTRADICTED_TAG = "contradicted"
"""Name of the tag `contradicted:<nanoseconds UTC>`: when behaviour last spoke against a memory."""


class AgeStep(BaseModel):
    """Freshness up to an age, the age itself included."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    until_days: float = Field(gt=0.0)
    freshness: float = Field(ge=0.0, le=1.0)


_STEPS = (
    AgeStep(until_days=7, freshness=1.0),
    AgeStep(until_days=30, freshness=0.5),
    AgeStep(until_days=90, freshness=0.2),
)


class DecayPolicy(BaseModel):
    """How memories age. Past the last step of its type a memory belongs in the archive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[AgeStep, ...] = Field(default=_STEPS, description="For every type not named below.")
    steps_by_type: dict[MemoryType, tuple[AgeStep, ...]] = Field(
        default_factory=dict[MemoryType, tuple[AgeStep, ...]]
    )
    reverify_after_days: float = Field(default=30.0, gt=0.0, description="Of a long-lived preference.")
    long_lived_after_days: float = Field(
        default=30.0, gt=0.0, description="A preference with a longer lifetime, or none, is long-lived."
    )
    unverified_share: float = Field(default=0.1, ge=0.0, le=1.0, description="What an overdue one keeps.")
    contradicted_share: float = Field(
        default=0.3, ge=0.0, le=1.0, description="What behaviour leaves of one."
    )
    delete_expired_after_days: float | None = Field(
        default=30.0, ge=0.0, description="After `valid_until`; None: expired memories are kept."
    )

    @model_validator(mode="after")
    def _refuse_steps_out_of_order(self) -> Self:
        for name, steps in (("steps", self.steps), *(self.steps_by_type.items())):
            days = [step.until_days for step in steps]
            if not days or days != sorted(set(days)):
                raise ValueError(f"{name} must be age steps of rising until_days, got {days}")
            if any(later.freshness > step.freshness for step, later in pairwise(steps)):
                falling = [step.freshness for step in steps]
                raise ValueError(f"{name} must not grow fresher with age, got freshness {falling}")
        return self

    def steps_of(self, kind: MemoryType) -> tuple[AgeStep, ...]:
        """The steps by which memories of a type age."""
        return self.steps_by_type.get(kind, self.steps)


@dataclass(frozen=True)
class Standing:
    """How far a memory still holds at one moment, and why."""

    freshness: float
    """In [0, 1]; age step × fraction of the lifetime left, after what lowers it further."""
    is_expired: bool
    """Past `valid_until`: never rendered, not even on request."""
    is_stale: bool
    """Past `stale_after` of its lifetime and not verified since: not rendered until it is."""
    needs_verification: bool
    """The user should be asked whether it still holds."""
    should_archive: bool
    """Older than the last age step: recalled only on request, whether the row says archived yet or not."""
    reasons: tuple[str, ...]
    """One line each for what keeps it from being rendered or lowers it; empty for one that is fully fresh."""

    @cached_property
    def is_renderable(self) -> bool:
        """Whether a prompt may hold it; who asked for the archive may also render what should be there."""
        return not (self.is_expired or self.is_stale or self.should_archive)


def is_expired(memory: Memory, now_ns: int) -> bool:
    """Whether `valid_until` has come; at that very nanosecond it has."""
    return memory.valid_until is not None and now_ns >= memory.valid_until


def is_long_lived_preference(memory: StoredMemory, policy: DecayPolicy | None = None) -> bool:
    """Whether the memory is a preference (tag `kind:preference`) meant to hold for long."""
    if PREFERENCE_TAG not in memory.tags or memory.type is MemoryType.CONSTRAINT:
        return False
    longest_ns = (policy or _DEFAULT).long_lived_after_days * DAY_NS
    return memory.valid_until is None or memory.valid_until - memory.created_ns > longest_ns


def assess(memory: StoredMemory, now_ns: int, policy: DecayPolicy | None = None) -> Standing:
    """How far a memory holds at `now_ns`.

    A constraint binds until `valid_until` and does not age; nor does a pinned memory. Any other ages from
    when it was last verified or used, whichever is later; use never replaces a verification that is due.
    """
    policy = policy or _DEFAULT
    expired = is_expired(memory, now_ns)
    reasons = ["past valid_until"] if expired else []
    if memory.type is MemoryType.CONSTRAINT:
        return Standing(float(not expired), expired, False, False, False, tuple(reasons))
    step, left, stale, archive, overdue = 1.0, 1.0, False, False, False
    if not memory.pinned:
        # A clock set back makes nothing older than new.
        age_ns = max(0, now_ns - max(memory.verified_ns, memory.used_ns or 0))
        reached = (s.freshness for s in policy.steps_of(memory.type) if age_ns <= s.until_days * DAY_NS)
        # Past the last step: fetched from the archive it may be rendered, but its weight says nothing.
        step = next(reached, None)
        archive, step = step is None, step or 0.0
        left, stale = _lifetime(memory, now_ns)
        is_unverified = now_ns - memory.verified_ns > policy.reverify_after_days * DAY_NS
        overdue = is_unverified and is_long_lived_preference(memory, policy)
    share = min(policy.unverified_share if overdue else 1.0, step)
    # Behaviour spoke against it, and no verification came after.
    prefix = f"{CONTRADICTED_TAG}:"
    moments = [tag.removeprefix(prefix) for tag in memory.tags if tag.startswith(prefix)]
    contradicted = any(moment.isdecimal() and int(moment) >= memory.verified_ns for moment in moments)
    if contradicted:
        share *= policy.contradicted_share
    notes = (
        (step < 1.0 and not archive, f"age step {step:g}"),
        (archive, "older than the last age step"),
        (left < 1.0 and not expired, f"{left:.2f} of its lifetime left"),
        (stale, "past stale_after and not verified since"),
        (overdue, f"a preference not verified for {policy.reverify_after_days:g} days"),
        (contradicted, "contradicted by behaviour"),
    )
    reasons += [note for applies, note in notes if applies]
    asks = not expired and (stale or overdue or contradicted)
    return Standing(0.0 if expired else share * left, expired, stale, asks, archive, tuple(reasons))


def compute_freshness(memory: StoredMemory, now_ns: int, policy: DecayPolicy | None = None) -> float:
    """`assess(...).freshness`: what a store decays by, unless it is given another `decay`."""
    return assess(memory, now_ns, policy).freshness


def _lifetime(memory: StoredMemory, now_ns: int) -> tuple[float, bool]:
    """The fraction of the lifetime that is left, and whether it is stale."""
    if memory.valid_until is None:
        return 1.0, False
    lifetime_ns = memory.valid_until - memory.created_ns
    if lifetime_ns <= 0:
        return 0.0, False
    left = min(1.0, max(0.0, (memory.valid_until - now_ns) / lifetime_ns))
    # In whole nanoseconds, so that the boundary is the same moment on every platform.
    boundary_ns = memory.created_ns + round(lifetime_ns * memory.stale_after)
    return left, now_ns > boundary_ns and memory.verified_ns <= boundary_ns


_DEFAULT = DecayPolicy()
