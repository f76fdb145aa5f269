"""`Harness`: a model, some memories and a question to an answer and a receipt."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from salience.config import load_settings
from salience.context.template import ContextTemplate, load_template
from salience.conversation import ChatAnswer, Conversation, ConversationOptions
from salience.conversations import Conversations
from salience.prompt_assembly import assemble_prompt
from salience.rule_binding import bind_rules
from salience_memory import NOBODY, Clock, Memory, MemoryStore, Viewer, system_clock
from salience_memory.memory_recall import MemoryRecall
from salience_memory.registrar.registrar_queue import RegistrarQueue
from salience_models import (
    BiasPlan,
    EncodedPrompt,
    Generation,
    LanguageModel,
    Receipt,
    Request,
    Sampling,
    Steering,
    StreamEvent,
    generate,
    plan_from_weights,
    score,
    stream,
)

__all__ = ["Answer", "Explanation", "Harness"]


@dataclass(frozen=True)
class Answer:
    """What the model said, and what steering did.

    `finish_reason` is "stop", "length" or, where the memories' rules ended the answer, "content_filter".
    """

    text: str
    finish_reason: str
    receipt: Receipt
    prompt: EncodedPrompt
    generation: Generation


@dataclass(frozen=True)
class Explanation:
    """An answer with each memory's influence on it.

    `influence` is by memory id: how much the answer's mean log-probability (nats per token) drops
    when the memory is left out of the prompt, all else steered as before. Mass is not influence.
    """

    answer: Answer
    plan: BiasPlan
    influence: dict[str, float]


class Harness:
    """Answers questions with memories that the model's attention is steered towards."""

    def __init__(self, lm: LanguageModel, steering: Steering = Steering()) -> None:
        self.lm = lm
        self.steering = steering
        self._conversations = Conversations()

    @classmethod
    def load(
        cls,
        source: str,
        *,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        steering: Steering = Steering(),
        cache_dir: Path | None = None,
    ) -> "Harness":
        """Load a model (`bundled:…`, hub id, folder or `.gguf`); see `LanguageModel.load` for errors."""
        where = cache_dir or load_settings().cache_dir
        return cls(
            LanguageModel.load(source, revision=revision, device=device, dtype=dtype, cache_dir=where),
            steering,
        )

    def ask(
        self,
        question: str,
        memories: Sequence[Memory] = (),
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: Steering | None = None,
    ) -> Answer:
        """Answer a question; memories with a weight above 0.5 draw attention by the steering's rule.

        The rules of constraints among the memories bind the answer.

        Raises:
            ValueError: A blank question, two memories with one id, or a rule that cannot be enforced.
            ConstraintContradiction: The rules leave no answer.
            PromptTooLong: Prompt and answer are over the context window; the message says by how much.
        """
        return self._answer(
            *self.prepare(question, memories, system=system, steering=steering), sampling=sampling
        )

    def stream(
        self,
        question: str,
        memories: Sequence[Memory] = (),
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: Steering | None = None,
    ) -> Iterator[StreamEvent]:
        """As `ask`, token by token; the last event carries the receipt."""
        _, request = self.prepare(question, memories, system=system, steering=steering)
        yield from stream(self.lm, [request], [sampling], with_mass=True)

    def chat(
        self,
        message: str,
        *,
        viewer: Viewer = NOBODY,
        template: str | Path | ContextTemplate = "personal_assistant",
        store: MemoryStore | None = None,
        recall: MemoryRecall | None = None,
        registrar: RegistrarQueue | None = None,
        memories: Sequence[Memory] = (),
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: Steering | None = None,
        options: ConversationOptions | None = None,
        clock: Clock = system_clock,
    ) -> ChatAnswer:
        """Answer a message of a dialogue: recall, render, bias, answer, register, feed back, audit.

        A viewer that names a session has a dialogue that goes on from call to call; without one each message
        stands alone. See `Conversation.stream` for arguments and errors, and `conversation` for streaming.
        """
        conversation = self.conversation(
            viewer=viewer,
            template=template,
            store=store,
            recall=recall,
            registrar=registrar,
            options=options,
            clock=clock,
        )
        return conversation.ask(
            message, memories=memories, system=system, sampling=sampling, steering=steering
        )

    def conversation(
        self,
        *,
        viewer: Viewer = NOBODY,
        template: str | Path | ContextTemplate = "personal_assistant",
        store: MemoryStore | None = None,
        recall: MemoryRecall | None = None,
        registrar: RegistrarQueue | None = None,
        options: ConversationOptions | None = None,
        clock: Clock = system_clock,
    ) -> Conversation:
        """The dialogue of a viewer's session, a new one where there is none yet or no session is named.

        Raises:
            TemplateInvalid: No such template, or it breaks its contract.
        """
        chosen = template if isinstance(template, ContextTemplate) else load_template(template)
        fresh = Conversation(
            self.lm,
            chosen,
            viewer=viewer,
            store=store,
            recall=recall,
            registrar=registrar,
            steering=self.steering,
            options=options,
            clock=clock,
        )
        return self._conversations.resume(fresh)

    def explain(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),
        steering: Steering | None = None,
    ) -> Explanation:
        """Answer, then measure what leaving each memory out does to that answer's log-probability.

        It is the model's own, before rules mask anything: the influence of a constraint is its text's.

        Raises:
            ValueError: The rules left no token of an answer to explain; else as `ask`.
        """
        whole, request = self.prepare(question, memories, system=system, steering=steering)
        answer = self._answer(whole, request, sampling=sampling)
        requests = [replace(request, constraint=None)]
        for left_out in memories:
            rest = [memory for memory in memories if memory is not left_out]
            prompt = assemble_prompt(self.lm, question, rest, system)
            requests.append(Request(prompt.token_ids, _move_plan(request.plan, prompt)))
        spoken = answer.generation.token_ids
        if not spoken:
            rules = list(answer.generation.rule_ids)
            raise ValueError(f"answer must hold a token to be explained, got none under the rules {rules}")
        full, *without = [score(self.lm, [r], [spoken])[0].mean_logprob for r in requests]
        influence = {m.memory_id: full - value for m, value in zip(memories, without, strict=True)}
        return Explanation(answer, request.plan, influence)

    def prepare(
        self,
        question: str,
        memories: Sequence[Memory] = (),
        *,
        system: str | None = None,
        steering: Steering | None = None,
    ) -> tuple[EncodedPrompt, Request]:
        """The encoded prompt and the steered request that `ask` runs, bound by the memories' rules."""
        prompt = assemble_prompt(self.lm, question, memories, system)
        *blocks, asked = prompt.spans
        weights = {memory.memory_id: memory.effective_weight for memory in memories}
        plan = plan_from_weights(
            blocks, weights, steering or self.steering, self.lm.info.n_layers, asked.start
        )
        return prompt, Request(prompt.token_ids, plan, bind_rules(self.lm, memories))

    def _answer(self, prompt: EncodedPrompt, request: Request, *, sampling: Sampling) -> Answer:
        (generation,) = generate(self.lm, [request], sampling, with_mass=True)
        return Answer(
            generation.text.strip(), generation.finish_reason, generation.receipt, prompt, generation
        )


def _move_plan(plan: BiasPlan, prompt: EncodedPrompt) -> BiasPlan:
    """The plan for a prompt that shows fewer of its blocks: each asks for what it asked for before."""
    *blocks, asked = prompt.spans
    before = {span.name: asdict(span) for span in plan.spans}
    spans = [before[block.name] | {"start": block.start, "end": block.end} for block in blocks]
    return BiasPlan.model_validate(plan.model_dump() | {"spans": spans, "question_start": asked.start})
