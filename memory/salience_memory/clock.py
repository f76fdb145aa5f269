"""Time: whole nanoseconds since 1970 in UTC, from a clock that the caller hands in."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

__all__ = ["DAY_NS", "Clock", "from_ns", "system_clock", "to_ns"]

Clock = Callable[[], int]
"""Returns nanoseconds since 1970-01-01T00:00Z."""

DAY_NS = 86_400 * 10**9

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_NS = 2**63 - 1


def system_clock() -> int:
    """The machine's clock."""
    return time.time_ns()


def to_ns(moment: datetime | str | int) -> int:
    """Nanoseconds of a moment: an aware datetime, ISO 8601 text with an offset or `Z`, or nanoseconds.

    Raises:
        ValueError: The moment names no offset, is not a time, or lies beyond the years 1677 to 2262.
    """
    if isinstance(moment, bool):
        raise ValueError(f"a time must be nanoseconds, an aware datetime or ISO 8601 text, got {moment!r}")
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError as error:
            raise ValueError(f"a time must be ISO 8601 text with an offset, got {moment!r}") from error
    if isinstance(moment, datetime) and moment.utcoffset() is None:
        raise ValueError(f"a time must carry its offset from UTC, got the naive {moment.isoformat()}")
    ns = moment if isinstance(moment, int) else (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    if abs(ns) > _MAX_NS:
        raise ValueError(f"a time must lie within 64-bit nanoseconds (1677 to 2262), got {moment}")
    return ns


def from_ns(ns: int, offset_min: int = 0) -> datetime:
    """The moment as a datetime, `offset_min` minutes east of UTC; cut to microseconds."""
    return (_EPOCH + timedelta(microseconds=ns // 1000)).astimezone(timezone(timedelta(minutes=offset_min)))
