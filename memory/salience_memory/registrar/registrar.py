"""The registrar: notices what is worth remembering in what a user says, and stores it or asks."""

import json
from collections.abc import Callable, Sequence

from salience_memory.clock import Clock, system_clock
from salience_memory.decay import DecayPolicy, assess
from salience_memory.registrar.corrections import CorrectionWriter
from salience_memory.registrar.outcomes import OutcomeKind, RegistrarOutcome
from salience_memory.registrar.patterns import fill_template
from salience_memory.registrar.reader import Finding, Vague, find_mentions, read_utterance
from salience_memory.registrar.rules import NoticingPack, Trigger, shipped_noticing_packs
from salience_memory.registrar.statements import Statement, StatementWriter
from salience_memory.registrar.utterances import Role, Utterance, strip_known
from salience_memory.scopes import Viewer
from salience_memory.store import MemoryStore
from salience_memory.vectors import Embed

__all__ = ["LOOK_BACK_TURNS", "REVIEW_EVERY_TURNS", "Judge", "Registrar"]

Judge = Callable[[str], bool]
"""Answers a question by yes or no, such as a small model held to these two words."""

LOOK_BACK_TURNS = 3
"""How many turns are searched for what a word points at."""

REVIEW_EVERY_TURNS = 10
"""How often what no rule took is put before the judge, and overdue preferences are asked about."""

_MOST_REVIEWED = 100


class Registrar:
    """Declares memories from what users say: by rule, else by judgement, else by what the last turns name,
    else it asks. It never guesses, and never reads what the model or the prompt said.

    A registrar holds no state between calls but what is in the store.
    """

    def __init__(
        self,
        store: MemoryStore,
        packs: Sequence[NoticingPack] | None = None,
        *,
        judge: Judge | None = None,
        embed: Embed | None = None,
        policy: DecayPolicy | None = None,
        clock: Clock = system_clock,
    ) -> None:
        """Make a registrar.

        Args:
            store: Where memories go.
            packs: Rules, asked in order; default, those shipped.
            judge: Asked about what a rule finds doubtful (without one the user is), and at once about
                sentences in which users speak of themselves and that no rule takes (without one: silence).
            embed: Finds paraphrases of what is known; without it only differences of form are seen through.
            policy: When a preference is due to be asked about.
            clock: When a turn is observed that does not say when it was said.
        """
        self.packs = tuple(shipped_noticing_packs() if packs is None else packs)
        self._store = store
        self._judge = judge
        self._policy = policy or DecayPolicy()
        self._clock = clock
        self._statements = StatementWriter(store, embed)
        self._corrections = CorrectionWriter(store, self._statements)

    def observe(
        self,
        turn: Utterance,
        viewer: Viewer,
        turns: Sequence[Utterance] = (),
        *,
        known: Sequence[str] = (),
        source_id: str | None = None,
    ) -> list[RegistrarOutcome]:
        """Take in one turn.

        Args:
            turn: What was said; only a user's own words are read.
            viewer: Whose turn it is, and whose the memories will be.
            turns: The turns before, oldest first; the last three are looked at.
            known: System prompts, and whatever else the prompt held that is nobody's statement. The memories
                that the last turns were given are looked up and need not be named.
            source_id: For the provenance; default, from the session and the time.

        Returns:
            One outcome for each thing noticed; none for chit-chat.
        """
        if turn.role is not Role.USER:
            return []
        turns = turns[-LOOK_BACK_TURNS:]
        stated_ns = self._clock() if turn.ns is None else turn.ns
        statement = Statement(viewer, stated_ns, source_id or f"turn:{viewer.session_id or ''}:{stated_ns}")
        given = {memory_id for one in (*turns, turn) for memory_id in one.memory_ids}
        recalled = [memory.content for memory in self._store.get_many(sorted(given), viewer).values()]
        reading = read_utterance(strip_known(turn.text, (*known, *recalled)), self.packs, turns)
        outcomes = [_ask_which(vague, Trigger.ENTITY) for vague in reading.vague]
        ready: list[Finding] = []
        for found in reading.findings:
            settled = self._explain(found, turns)
            if isinstance(settled, Finding):
                ready.append(settled)
            else:
                outcomes.append(settled)
        if reading.correction is not None:
            outcomes += self._corrections.settle(reading.correction, ready, statement, turns)
        else:
            outcomes += [self._statements.settle(found, statement) for found in ready]
        outcomes += self._judge_rest(reading.personal, statement)
        if turn.number is not None and turn.number % REVIEW_EVERY_TURNS == 0:
            outcomes += self.review(viewer, stated_ns, known=known)
        return outcomes

    def review(
        self, viewer: Viewer, now_ns: int | None = None, *, known: Sequence[str] = ()
    ) -> list[RegistrarOutcome]:
        """Put before the judge what no rule took in the last ten turns; ask about one overdue memory.

        Without a judge, or a session, nothing is read again.
        """
        now_ns = self._clock() if now_ns is None else now_ns
        outcomes = self._review_rest(viewer, known) if self._judge and viewer.session_id else []
        for memory in self._store.list(viewer, limit=_MOST_REVIEWED):
            standing = assess(memory, now_ns, self._policy)
            if standing.needs_verification and not standing.is_expired:
                pack = self._pack_of(memory.content)
                question = fill_template(pack.phrases.whether_still, {"text": memory.content})
                reason = ", ".join(standing.reasons)
                outcomes.append(
                    RegistrarOutcome(OutcomeKind.CLARIFY, Trigger.REVIEW, reason, memory, question)
                )
                break
        return outcomes

    def _review_rest(self, viewer: Viewer, known: Sequence[str]) -> list[RegistrarOutcome]:
        assert viewer.session_id is not None
        outcomes: list[RegistrarOutcome] = []
        contents = [*known, *(memory.content for memory in self._store.list(viewer, limit=_MOST_REVIEWED))]
        said = [
            episode
            for episode in self._store.episodes(viewer, viewer.session_id, limit=4 * REVIEW_EVERY_TURNS)
            if episode.role == Role.USER.value
        ]
        for episode in said[-REVIEW_EVERY_TURNS:]:
            statement = Statement(viewer, episode.ns, f"episode:{episode.episode_id}")
            rest = read_utterance(strip_known(episode.text, contents), self.packs).rest
            outcomes += self._judge_rest(rest, statement)
        return outcomes

    def _judge_rest(self, sentences: Sequence[str], statement: Statement) -> list[RegistrarOutcome]:
        """Declare, word for word, those sentences that a judge takes for lasting facts; none without one."""
        return [
            self._statements.declare_plainly(sentence, statement, Trigger.REVIEW)
            for sentence in sentences
            if self._judge is not None and self._judge(_ask_judge(self._pack_of(sentence), sentence))
        ]

    def _explain(self, found: Finding, turns: Sequence[Utterance]) -> Finding | RegistrarOutcome:
        """The finding, certain and with nothing left open; or the question, or the judge's no."""
        phrases = found.pack.phrases
        if not found.rule.is_certain:
            if self._judge is None:
                question = fill_template(phrases.whether, {"text": found.sentence})
                return RegistrarOutcome(
                    OutcomeKind.CLARIFY, found.trigger, "the rule is doubtful, no judge", None, question
                )
            if not self._judge(_ask_judge(found.pack, found.sentence)):
                return RegistrarOutcome(
                    OutcomeKind.IGNORED, found.trigger, "the judge took it for no lasting fact"
                )
        if found.vague is None:
            return found
        named = find_mentions(turns, self.packs) if found.vague.is_resolvable else []
        return found.explain(named[0]) if len(named) == 1 else _ask_which(found.vague, found.trigger)

    def _pack_of(self, text: str) -> NoticingPack:
        """The pack whose script a text is written in; the last, since names may be Latin anywhere."""
        matching = [pack for pack in self.packs if pack.finds((pack.script,), text)]
        return matching[-1] if matching else self.packs[0]


def _ask_which(vague: Vague, trigger: Trigger) -> RegistrarOutcome:
    question = fill_template(vague.pack.phrases.which, {"text": vague.text})
    return RegistrarOutcome(OutcomeKind.CLARIFY, trigger, "it is open what is meant", None, question)


def _ask_judge(pack: NoticingPack, sentence: str) -> str:
    # Quoted as JSON, so that no sentence can end the quotation and add to the question.
    return fill_template(pack.judge_prompt, {"text": json.dumps(sentence, ensure_ascii=False)})
