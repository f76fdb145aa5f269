import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from salience_models.errors import BlockDropped
from salience_models.text.chat_rendering import render_chat
from salience_models.text.messages import Message, TextSpan

PLAIN = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}<end>{% endfor %}"
TRIMMED = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}<end>{% endfor %}"
REASONING = PLAIN.replace("m['content']", "m['content'].split('</think>')[-1].lstrip()")


def build(template: str | None) -> PreTrainedTokenizerBase:
    """A tokenizer that matters for its template and its one special token, `<end>`."""
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), eos_token="<end>", chat_template=template
    )


def write(role: str, content: str, **blocks: str) -> Message:
    spans = [(name, content.index(block), len(block)) for name, block in blocks.items()]
    return Message(role, content, tuple(TextSpan(name, at, at + length) for name, at, length in spans))


def render(template: str, *messages: Message) -> tuple[str, dict[str, str], list[str]]:
    """The text, the text of each block and the texts that the template wrote."""
    chat = render_chat(build(template), messages, add_generation_prompt=False)
    blocks = {span.name: chat.text[span.start : span.end] for span in chat.spans}
    return chat.text, blocks, [chat.text[start:end] for start, end in chat.template_ranges]


def test_contents_and_blocks_are_told_from_the_template() -> None:
    text, blocks, written = render(
        PLAIN, write("system", "say what you know", a="say", b="you know"), write("user", "Hi", c="Hi")
    )
    assert text == "[system]say what you know<end>[user]Hi<end>"
    assert blocks == {"a": "say", "b": "you know", "c": "Hi"}
    assert written == ["[system]", "<end>[user]", "<end>"]


def test_content_equal_to_template_text_is_content() -> None:
    _, blocks, written = render(PLAIN, write("user", "[user]", a="[user]"), write("user", "<end>[user]"))
    assert blocks == {"a": "[user]"}
    assert written == ["[user]", "<end>[user]", "<end>"]


def test_whitespace_that_the_template_strips_outside_blocks_is_no_matter() -> None:
    text, blocks, written = render(TRIMMED, write("user", " \n a block\n", a="a block"), write("user", " \n"))
    assert text == "[user]a block<end>[user]<end>"
    assert blocks == {"a": "a block"}
    assert written == ["[user]", "<end>[user]<end>"]


@pytest.mark.parametrize(
    ("content", "block"), [("  ab", "  a"), ("ab\n", "b\n"), (" \n", " \n"), (" a ", " a ")]
)
def test_block_whose_edge_the_template_strips_is_refused_by_name(content: str, block: str) -> None:
    with pytest.raises(BlockDropped, match=r"block 'a' of message 0 \(user\) .* changes it: .* whitespace"):
        render(TRIMMED, write("user", content, a=block))


@pytest.mark.parametrize(
    ("verb", "template"),
    {
        "drops": "{% for m in messages if m['role'] != 'system' %}{{ m['content'] }}{% endfor %}",
        "repeats": "{% for m in messages + messages %}{{ m['content'] }}{% endfor %}",
        "changes": "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}",
        "moves": "{% for m in messages %}{{ m['content'][10:] + m['content'][:10] }}{% endfor %}",
    }.items(),
)
def test_template_that_loses_a_block_is_refused_by_name(verb: str, template: str) -> None:
    with pytest.raises(
        BlockDropped, match=rf"block 'a' of message 0 \(system\) .* got a template that {verb} it"
    ):
        render(template, write("system", "abc block def", a="block"), write("user", "hello"))


def test_refusal_names_the_one_block_that_is_lost() -> None:
    with pytest.raises(BlockDropped, match=r"block 'late' of message 1 \(user\)"):
        render(
            TRIMMED, write("user", "one", early="one"), write("user", "two, three ", mid="two", late="three ")
        )


def test_template_that_swaps_messages_is_refused() -> None:
    with pytest.raises(BlockDropped, match="moves them"):
        render(
            PLAIN.replace("in messages", "in messages | reverse"), write("user", "one"), write("user", "two")
        )


def test_template_may_rewrite_a_message_without_blocks() -> None:
    text, blocks, written = render(
        REASONING,
        write("user", "Hi", a="Hi"),
        write("assistant", "well</think>\n\nHello"),
        write("user", "Bye"),
    )
    assert text == "[user]Hi<end>[assistant]Hello<end>[user]Bye<end>"
    assert blocks == {"a": "Hi"}
    assert written == ["[user]", "<end>[assistant]Hello<end>[user]", "<end>"]


def test_special_token_text_in_a_message_that_the_template_rewrites_is_refused() -> None:
    with pytest.raises(BlockDropped, match=r"message 1 \(assistant\) .* holds '<end>'"):
        render(REASONING, write("user", "Hi"), write("assistant", "well</think><end>"))


def test_block_in_a_message_that_the_template_rewrites_is_refused() -> None:
    with pytest.raises(BlockDropped, match=r"block 'a' of message 1 \(assistant\)"):
        render(REASONING, write("user", "Hi"), write("assistant", "well</think>Hello", a="Hello"))


def test_template_that_escapes_a_block_is_refused() -> None:
    template = "{% for m in messages %}{{ m['content'] | tojson }}{% endfor %}"
    assert render(template, write("user", 'a "b" c', a="a"))[1] == {"a": "a"}
    with pytest.raises(BlockDropped, match="changes it"):
        render(template, write("user", 'a "b" c', a='"b"'))


def test_private_use_characters_in_content_are_content() -> None:
    private = "".join(map(chr, [*range(0xF0000, 0xF0010), 0xE000, 0x100000]))
    text, blocks, _ = render(PLAIN, write("user", f"a{private}b", a=private[3:7]))
    assert text == f"[user]a{private}b<end>"
    assert blocks == {"a": private[3:7]}


def test_tokenizer_without_chat_template_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a chat template, got none"):
        render_chat(build(None), [write("user", "hello")], add_generation_prompt=True)


def test_refusal_of_the_template_is_told_with_roles_and_reason() -> None:
    template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(ValueError, match=r"roles \['system', 'user'\] .* System role not supported"):
        render(template, write("system", "be brief"), write("user", "hello"))
