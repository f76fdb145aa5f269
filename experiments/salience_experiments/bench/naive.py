"""The loop that the runner's shortcuts are held equal to: trial by trial, nothing shared or drafted."""

from salience_experiments.trial_batches import PreparedTrial
from salience_models import LanguageModel

__all__ = ["naive_answer"]


def naive_answer(lm: LanguageModel, trial: PreparedTrial, max_new_tokens: int) -> tuple[int, ...]:
    """Greedy tokens after a full prefill of the trial's prompt under its plan, batch 1, token by token.

    Ends at `max_new_tokens` or before an end token.
    """
    state = lm.prefill([trial.request], new_tokens=max_new_tokens)
    answer: list[int] = []
    while len(answer) < max_new_tokens:
        token = int(state.logits[0].argmax())
        if token in lm.info.eos_token_ids:
            break
        answer.append(token)
        if len(answer) < max_new_tokens:
            lm.decode(state, [token])
    return tuple(answer)
