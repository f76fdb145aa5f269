"""`Harness`: a loaded model, perhaps with a memory, and the sessions that are asked."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from salience.config import DEFAULT_MODEL, DEFAULT_TEMPLATE, load_settings
from salience.context.template import ContextTemplate, load_template
from salience.judge import model_judge
from salience.memory_access import DEFAULT_EMBEDDER, MemoryAccess
from salience.session import AnswerEvent, Explanation, MemoryLike, Session
from salience.turn import Answer, Parts, Steps, TurnOptions
from salience_memory import MemoryStore, Viewer
from salience_memory.clock import Clock, system_clock
from salience_memory.decay import DecayPolicy
from salience_models import LanguageModel, Steering

if TYPE_CHECKING:
    from salience_memory.vectors import Embed

__all__ = ["DEFAULT_MODEL", "DEFAULT_TEMPLATE", "Harness"]


class Harness:
    """Answers with memories that the model's attention is steered towards.

    Everything is wired by `load`; the constructor is for those who bring a loaded model or a wired memory.
    """

    def __init__(
        self,
        lm: LanguageModel,
        steering: Steering | str = Steering(),
        *,
        memory: MemoryAccess | None = None,
        template: str | Path | ContextTemplate = DEFAULT_TEMPLATE,
        options: TurnOptions = TurnOptions(),
        steps: Steps = Steps(),
        clock: Clock = system_clock,
    ) -> None:
        """Make a harness; `memory` is closed with it.

        Raises:
            TemplateInvalid: No such template, or it breaks its contract.
        """
        self.lm = lm
        self.memory = memory
        self.steering = Steering.of(steering)
        self.template = load_template(template)
        self._parts = Parts(lm, memory, options)
        self._steps = steps
        self._clock = clock
        self._sessions: list[Session] = []
        self._own: Session | None = None

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        *,
        memory: str | Path | MemoryStore | None = None,
        embedder: "str | Embed | None" = DEFAULT_EMBEDDER,
        judge: bool = False,
        policy: DecayPolicy | None = None,
        steering: Steering | str = Steering(),
        template: str | Path | ContextTemplate = DEFAULT_TEMPLATE,
        options: TurnOptions = TurnOptions(),
        steps: Steps = Steps(),
        clock: Clock = system_clock,
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        cache_dir: Path | None = None,
    ) -> "Harness":
        """Load a model and open a memory with everything that belongs to it; use it as a context manager.

        Args:
            model: `bundled:…`, a hub id, a folder or a `.gguf` file; see `LanguageModel.load` for errors.
            memory: The store's file, made where there is none, or a store opened by hand; None: no memory.
            embedder: What recall compares meanings by; None searches by words alone.
            judge: Whether the model is asked about sentences that no rule of the registrar takes.
            policy: How memories age.
            steering: How weights steer, or "none".
            template: A shipped template's name, a `.json` file, or a template.
            options: What is recalled, how the window is shared out.
            steps: The way of a turn; replace one to change it.
            clock: What time it is, for everything.

        Raises:
            StoreError: The memory cannot be opened.
            TemplateInvalid: No such template, or it breaks its contract.
        """
        chosen = load_template(template)
        where = cache_dir or load_settings().cache_dir
        lm = LanguageModel.load(model, revision=revision, device=device, dtype=dtype, cache_dir=where)
        access = None
        if memory is not None:
            options_of_access: dict[str, Any] = {
                "embedder": embedder,
                "clock": clock,
                "policy": policy,
                "judge": partial(model_judge, lm) if judge else None,
            }
            if isinstance(memory, MemoryStore):
                access = MemoryAccess(memory, **options_of_access)
            else:
                access = MemoryAccess.open(memory, **options_of_access)
            access.maintain()
        return cls(
            lm, steering, memory=access, template=chosen, options=options, steps=steps, clock=clock
        )

    def session(
        self,
        user: str | None = None,
        session_id: str | None = None,
        *,
        template: str | Path | ContextTemplate | None = None,
        steering: Steering | str | None = None,
    ) -> Session:
        """A dialogue on behalf of a user, or of nobody.

        Args:
            user: Whose memories are seen and made; None sees only those that are everybody's.
            session_id: Names a dialogue to go on with; without, it is a new one that ends when it is closed.
            template: Default, the harness's.
            steering: Default, the harness's.

        Raises:
            TemplateInvalid: No such template, or it breaks its contract.
        """
        session = Session(
            self._parts,
            load_template(self.template if template is None else template),
            viewer=Viewer(user_id=user, session_id=session_id or uuid4().hex),
            steering=self.steering if steering is None else Steering.of(steering),
            steps=self._steps,
            clock=self._clock,
            is_temporary=session_id is None,
        )
        self._sessions = [known for known in self._sessions if not known.is_closed] + [session]
        return session

    def ask(self, question: str, memories: Sequence[MemoryLike] = (), **options: Any) -> Answer:
        """As `Session.ask`, on behalf of nobody: the memories given and those that are everybody's."""
        return self._nobodys.ask(question, memories, **options)

    def chat(self, message: str, memories: Sequence[MemoryLike] = (), **options: Any) -> Answer:
        """As `Session.chat`, in a dialogue of the harness's own that ends with it."""
        return self._nobodys.chat(message, memories, **options)

    def stream(
        self, message: str, memories: Sequence[MemoryLike] = (), **options: Any
    ) -> Iterator[AnswerEvent]:
        """As `Session.stream`, in the same dialogue as `chat`."""
        return self._nobodys.stream(message, memories, **options)

    def explain(self, question: str, memories: Sequence[MemoryLike] = (), **options: Any) -> Explanation:
        """As `Session.explain`, on behalf of nobody."""
        return self._nobodys.explain(question, memories, **options)

    @property
    def _nobodys(self) -> Session:
        if self._own is None:
            self._own = self.session()
        return self._own

    def close(self) -> None:
        """End the sessions that have no name, then the registrar, recall and the store."""
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        if self.memory is not None:
            self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
