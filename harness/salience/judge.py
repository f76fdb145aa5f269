"""The registrar's judge: a loaded model that can say nothing but yes or no."""

from salience_memory.registrar import Judge
from salience_models import (
    LanguageModel,
    Message,
    Request,
    Rule,
    Sampling,
    compile_rules,
    encode_chat,
    encode_text,
    generate,
)

__all__ = ["model_judge"]

_YES_OR_NO = Rule(rule_id="yes_or_no", allow_values=("yes", "no"))


def model_judge(lm: LanguageModel) -> Judge:
    """A judge that puts each question to `lm` as a user's message and takes its likelier word, unsteered.

    Raises:
        ValueError: The model has no tokenizer, or no token that ends an answer.
        ModelsError: Its vocabulary cannot be constrained.
    """
    constraint = compile_rules([_YES_OR_NO], lm.vocabulary)

    def judge(question: str) -> bool:
        if lm.info.has_chat_template:
            prompt = encode_chat(lm.tokenizer, [Message("user", question)])
        else:
            prompt = encode_text(lm.tokenizer, f"Question: {question}\nAnswer: ")
        request = Request(prompt.token_ids, constraint=constraint)
        (answer,) = generate(lm, [request], Sampling(max_new_tokens=8))
        return answer.text == "yes"

    return judge
