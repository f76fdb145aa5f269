"""Reading an utterance: which rules it sets off. Pure; the store is not asked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from salience_memory.registrar.patterns import (
    clean_capture,
    fill_template,
    make_finder,
    read_grams,
    required_grams,
)
from salience_memory.registrar.rules import IntentFilter, LifetimeFilter, NoticingPack, NoticingRule, Trigger
from salience_memory.registrar.utterances import Role, Utterance, split_sentences

__all__ = ["Correction", "Finding", "Reading", "Vague", "find_mentions", "read_utterance"]

_QUESTION_END = re.compile(r"[?？]\W*\Z")


@dataclass(frozen=True)
class Vague:
    """Something said that points at what the sentence does not name."""

    pack: NoticingPack
    text: str
    is_resolvable: bool
    """Whether the last turns may name it; otherwise only the user can."""


@dataclass(frozen=True)
class Finding:
    """A rule set off by a sentence."""

    rule: NoticingRule
    pack: NoticingPack
    sentence: str
    captures: Mapping[str, str]
    when: str | None
    """The time that the sentence names, in its own words."""
    is_passing: bool
    """The sentence speaks of the moment."""
    is_suspicious: bool
    vague: Vague | None

    @property
    def trigger(self) -> Trigger:
        return self.rule.trigger

    @property
    def key(self) -> str:
        return fill_template(self.rule.key, self.captures)

    @property
    def result(self) -> str:
        return fill_template(self.rule.value, self.captures)

    @property
    def content(self) -> str:
        return fill_template(self.rule.content, self.captures)

    def explain(self, name: str) -> "Finding":
        """The finding with `name` in the place of what was vague."""
        assert self.vague is not None
        said = self.vague.text
        captures = {group: name if text == said else text for group, text in self.captures.items()}
        return replace(self, captures=captures, vague=None)


@dataclass(frozen=True)
class Correction:
    """Something said before is taken back; `old` and `new` where the sentence names them."""

    pack: NoticingPack
    sentence: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Reading:
    """What one utterance says."""

    findings: tuple[Finding, ...]
    correction: Correction | None
    vague: tuple[Vague, ...]
    rest: tuple[str, ...]
    """Statements that no rule took."""
    personal: tuple[str, ...]
    """Those of them that speak of the speaker, and not of the moment only."""

    @property
    def triggers(self) -> frozenset[Trigger]:
        """What is certain enough to act on without asking."""
        certain = {found.trigger for found in self.findings if found.rule.is_certain and not found.vague}
        return frozenset(certain | ({Trigger.CORRECTION} if self.correction else set()))

    @property
    def must_ask(self) -> bool:
        """Whether something in it has to be asked about, as far as the utterance alone tells."""
        return bool(self.vague) or any(found.vague or not found.rule.is_certain for found in self.findings)


def read_utterance(text: str, packs: Sequence[NoticingPack], turns: Sequence[Utterance] = ()) -> Reading:
    """What an utterance says by the rules of the packs whose script it is written in.

    Args:
        text: What was said, without what the prompt held already.
        packs: Asked in order.
        turns: The turns before; a weak correction needs something to correct that was no question.
    """
    findings: list[Finding] = []
    corrections: list[Correction] = []
    vague: list[Vague] = []
    rest: list[str] = []
    personal: list[str] = []
    for sentence in split_sentences(text):
        before = len(findings) + len(corrections) + len(vague)
        is_stated = is_personal = False
        for pack in packs:
            if not pack.finds((pack.script,), sentence):
                continue
            said = sentence
            for pattern in pack.compiled(pack.openers):  # from its first word that says something
                if (match := pattern.match(sentence)) and match.end() < len(sentence):
                    said = sentence[match.end() :]
                    break
            if _is_correction(said, pack, turns):
                corrections.append(_read_correction(said, pack))
            if pack.finds(pack.vague, said.rstrip(".!。 ")):
                vague.append(Vague(pack, said, False))
                continue
            findings += _apply_rules(said, pack)
            if not _refuses(pack, tuple(IntentFilter), sentence, len(sentence)):
                is_stated = True
                is_personal |= pack.finds(pack.personal, said) and not pack.finds(pack.transient, said)
        if is_stated and before == len(findings) + len(corrections) + len(vague):
            rest.append(sentence)
            personal += [sentence] if is_personal else []
    correction = corrections[0] if corrections else None
    return Reading(tuple(findings), correction, tuple(vague), tuple(rest), tuple(personal))


def _apply_rules(sentence: str, pack: NoticingPack) -> list[Finding]:
    """What the rules find, in the order said; each part of the sentence is the first matching rule's."""
    taken: dict[tuple[int, int], Finding] = {}
    moment = _Moment(pack, sentence)
    for rule in pack.rules:
        place = 0
        if any(grams.isdisjoint(moment.grams) for grams in required_grams(rule.pattern)):
            continue
        find = make_finder(rule.pattern)
        while match := find(sentence, place):
            finding, end = _make_finding(match, rule, moment)
            place = max(end, match.start() + 1)
            is_free = all(end <= start or stop <= match.start() for start, stop in taken)
            if finding and is_free and not _refuses(pack, rule.refused_intents, sentence, match.start()):
                taken[match.start(), end] = finding
    return [finding for _, finding in sorted(taken.items(), key=lambda item: item[0])]


class _Moment:
    """What a whole sentence tells of the time and the manner of all that it states; read when first asked."""

    def __init__(self, pack: NoticingPack, sentence: str) -> None:
        self.pack = pack
        self.sentence = sentence
        self.grams = read_grams(sentence)

    @cached_property
    def is_passing(self) -> bool:
        return self.pack.finds(self.pack.transient, self.sentence)

    @cached_property
    def is_suspicious(self) -> bool:
        return self.pack.finds(self.pack.suspicious, self.sentence)

    @cached_property
    def when(self) -> str | None:
        found = (pattern.search(self.sentence) for pattern in self.pack.compiled(self.pack.when))
        return next((match.group() for match in found if match), None)


def _make_finding(match: re.Match[str], rule: NoticingRule, moment: _Moment) -> tuple[Finding | None, int]:
    """What a match states, None for nothing, and where it ends without the fillers."""
    pack = moment.pack
    captures, end = _clean(match, pack)
    said = [text for text in captures.values() if text]
    if not said or (rule.lifetime is LifetimeFilter.STABLE and moment.is_passing):
        return None, end
    vague = next(
        (
            Vague(pack, text, is_resolvable)
            for is_resolvable, patterns in (
                (False, pack.vague),
                (False, pack.pointers),
                (True, pack.referents),
            )
            for text in said
            if pack.finds(patterns, text)
        ),
        None,
    )
    return (
        Finding(
            rule,
            pack,
            moment.sentence,
            captures,
            moment.when,
            moment.is_passing,
            moment.is_suspicious,
            vague,
        ),
        end,
    )


def _clean(match: re.Match[str], pack: NoticingPack) -> tuple[dict[str, str], int]:
    """The captures without fillers, and the match's end: another statement may begin in what was dropped."""
    (fillers,) = pack.compiled((pack.fillers,))
    captures: dict[str, str] = {}
    end = match.end()
    for name, text in match.groupdict().items():
        captures[name] = clean_capture(text or "", fillers)
        if captures[name] and match.end(name) == match.end():
            end = match.start(name) + (text or "").index(captures[name]) + len(captures[name])
    return captures, end


def _refuses(pack: NoticingPack, intents: Sequence[IntentFilter], sentence: str, start: int) -> bool:
    """Whether what begins at `start` is none of the speaker's own statements."""
    for intent in intents:
        # A question shows at its end and irony anywhere, the others before what they change.
        is_whole = intent in (IntentFilter.QUESTION, IntentFilter.IRONIC)
        seen = sentence if is_whole else sentence[:start]
        if pack.finds(pack.intents.get(intent, ()), seen):
            return True
        if intent is IntentFilter.QUOTED:
            opened = seen.count("“") + seen.count("「") - seen.count("”") - seen.count("」")
            if seen.count('"') % 2 == 1 or opened > 0:
                return True
    return False


def _is_correction(sentence: str, pack: NoticingPack, turns: Sequence[Utterance]) -> bool:
    rules = pack.correction
    if pack.finds(rules.never, sentence) or _QUESTION_END.search(sentence):
        return False
    if pack.finds(rules.strong, sentence):
        return True
    last = turns[-1] if turns else None
    asked = last is not None and last.role is Role.ASSISTANT and _QUESTION_END.search(last.text.rstrip())
    return last is not None and not asked and pack.finds(rules.weak, sentence)


def _read_correction(sentence: str, pack: NoticingPack) -> Correction:
    for pattern in pack.compiled(pack.correction.replaces):
        if match := pattern.search(sentence):
            (fillers,) = pack.compiled((pack.fillers,))
            parts = {name: clean_capture(text or "", fillers) for name, text in match.groupdict().items()}
            return Correction(pack, sentence, parts.get("old") or None, parts.get("new") or None)
    return Correction(pack, sentence, None, None)


def find_mentions(turns: Sequence[Utterance], packs: Sequence[NoticingPack]) -> list[str]:
    """What the turns name, in order, each once: quoted words, names, and what rules captured."""
    names: dict[str, str] = {}
    for turn in turns:
        if turn.role not in (Role.USER, Role.ASSISTANT):
            continue
        for sentence in split_sentences(turn.text):
            for pack in packs:
                is_its_own = pack.finds((pack.script,), sentence)
                for pattern in pack.compiled(pack.mentions if is_its_own else ()):
                    for match in pattern.finditer(sentence):
                        name = clean_capture(match["name"], None)
                        names.setdefault(name.casefold(), name)
        for found in read_utterance(turn.text, packs).findings if turn.role is Role.USER else ():
            for text in found.captures.values():
                if text and not found.vague:
                    names.setdefault(text.casefold(), text)
    return list(names.values())
