"""How memories fare, read off the audit log: how often referred to, at which weight, how often left out."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from salience_memory import AuditEvent

__all__ = ["HEAVY_USE", "MANY_CUTS", "MemoryUse", "TemplateUse", "count_memory_use", "count_template_use"]

HEAVY_USE = 0.66
"""Of the most referred-to memory's references: from here a row stands out."""

MANY_CUTS = 0.5
"""Truncation rate from which a row stands out."""

_BUDGETS = "_budget"
"""How the reasons end that a larger budget would do away with."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """One memory's row of the heat map."""

    memory_id: str
    references: int
    """Answers' references to it."""
    renders: int
    """Prompts that held it."""
    truncations: int
    """Prompts it was recalled for and left out of."""
    mean_weight: float | None
    """Effective weight over its renders; None where it was never rendered with one."""

    @property
    def truncation_rate(self) -> float:
        """The share in [0, 1] of the prompts it was meant for that left it out."""
        return self.truncations / max(1, self.renders + self.truncations)


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """How often a template's budget was too small."""

    name: str
    renders: int
    truncated: int
    """Renders in which a budget left something out."""


def count_memory_use(events: "Iterable[AuditEvent]") -> list[MemoryUse]:
    """The heat map's rows, most referred-to first."""
    references: Counter[str] = Counter()
    truncations: Counter[str] = Counter()
    renders: Counter[str] = Counter()
    weights: defaultdict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.kind == "generation":
            cited = event.facts.get("references")
            ids = cited.get("memory_ids") if isinstance(cited, dict) else None
            references.update(map(str, ids) if isinstance(ids, list) else ())
        elif event.kind == "render":
            truncations.update(str(cut["memory_id"]) for cut in _entries(event.facts.get("truncations")))
            for entry in _entries(event.facts.get("rendered")):
                renders[str(entry["memory_id"])] += 1
                if entry.get("weight") is not None:
                    weights[str(entry["memory_id"])].append(float(entry["weight"]))
    rows = [
        MemoryUse(
            memory_id,
            references[memory_id],
            renders[memory_id],
            truncations[memory_id],
            sum(weights[memory_id]) / len(weights[memory_id]) if weights[memory_id] else None,
        )
        for memory_id in {**references, **renders, **truncations}
    ]
    return sorted(rows, key=lambda row: (-row.references, -row.renders, -row.truncations, row.memory_id))


def count_template_use(events: "Iterable[AuditEvent]") -> list[TemplateUse]:
    """How often each template was rendered, and how often with something left out for want of room."""
    renders: Counter[str] = Counter()
    truncated: Counter[str] = Counter()
    for event in events:
        if event.kind == "render":
            name = str(event.facts.get("template", ""))
            reasons = [str(cut.get("reason", "")) for cut in _entries(event.facts.get("truncations"))]
            renders[name] += 1
            truncated[name] += any(reason.endswith(_BUDGETS) for reason in reasons)
    return [TemplateUse(name, count, truncated[name]) for name, count in sorted(renders.items())]


def _entries(fact: Any) -> Iterator[Mapping[str, Any]]:
    """The facts about memories in a list of such."""
    for entry in fact if isinstance(fact, list) else ():
        if isinstance(entry, dict) and "memory_id" in entry:
            yield cast(Mapping[str, Any], entry)
