"""Context templates: what their contract refuses, and by which words; fingerprints."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from salience.context import ContextTemplate, fingerprint_template, list_templates, load_template
from salience.errors import TemplateInvalid
from salience_memory import MemoryType


def fields_of(template: ContextTemplate) -> dict[str, Any]:
    return copy.deepcopy(template.model_dump(mode="json"))


def refuse(tmp_path: Path, fields: object) -> str:
    """The one sentence that a template file is refused with."""
    file = tmp_path / "template.json"
    file.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    with pytest.raises(TemplateInvalid) as refusal:
        load_template(file)
    message = str(refusal.value)
    assert message.startswith(f"template file {file}")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accepts": {"types": ["memo"]}}, "sections.1.accepts.types.0: Input should be 'constraint'"),
        ({"accepts": {"types": ["facts"]}}, "got 'facts'"),
        ({"accepts": {"types": []}}, "sections.1.accepts.types"),
        ({"accepts": {"types": ["task"], "tags": ["a b"]}}, "tags must be `word` or `name:value`, got 'a b'"),
        ({"accepts": {"types": ["task"], "tags": ["semantic"]}}, "must not name a memory type"),
        ({"accepts": {"types": ["task"], "tags": ["type:memo"]}}, "must not name a memory type"),
        ({"accepts": {"types": ["constraint"]}}, "'facts' accepts constraint and must be of layer rules"),
        ({"name": "No Name"}, "sections.1.name"),
        ({"name": "notes"}, "each section must have a name of its own, got 'notes' twice"),
        ({"priority": 3}, "each section must have a priority of its own, got 3 twice"),
        ({"priority": 0}, "sections.1.priority"),
        ({"max_tokens": 0}, "sections.1.max_tokens"),
        ({"layer": "middle"}, "sections.1.layer"),
        ({"layer": "rules"}, "section 'facts' of layer rules must accept constraint alone, got ['semantic']"),
        ({"render": "- {content} {colour}"}, "render must hold fields out of content, label,"),
        ({"render": "- {content} {colour}"}, "got {colour}"),
        ({"render": "- {content} ({weight})"}, "render must hold {weight} inside [ ]"),
        ({"render": "- nothing"}, "exactly one of {content} and {label}"),
        ({"render": "- {content} {label}"}, "exactly one of {content} and {label}"),
        ({"render": "- [{content}]"}, "exactly one of {content} and {label}"),
        ({"render": "- {content}["}, "balanced, unnested braces and brackets"),
        ({"render": "- {content}[ plain]"}, "a field in each pair of [ ]"),
        ({"render": "- {content"}, "balanced, unnested braces and brackets"),
        ({"render": "- {content}\n"}, "render"),
        ({"render": "x" * 60 + "{content}"}, "must leave half of its 100 characters to the memory"),
        ({"title": "[MEMORY_CONTEXT]"}, "title must be one line without backslashes or delimiters"),
        ({"colour": "red"}, "sections.1.colour is not a known field"),
    ],
)
def test_a_section_that_breaks_its_contract_is_named(
    template: ContextTemplate, tmp_path: Path, change: dict[str, Any], message: str
):
    fields = fields_of(template)
    fields["sections"][1] |= change
    assert message in refuse(tmp_path, fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sections": []}, "sections"),
        ({"template_version": "one"}, "template_version"),
        (
            {"instruction": "See [/MEMORY_CONTEXT]."},
            "must not hold the delimiter [MEMORY_CONTEXT]",
        ),
        ({"memories_note": "two\nlines"}, "a note must be one line of text"),
        ({"events": [{"type": "Bad", "when": "(", "fields": {"a": "b"}}]}, "must be a regular expression"),
        ({"events": [{"type": "Bad", "when": "x", "fields": {}}]}, "events.0.fields"),
        ({"events": [{"type": "bad", "when": "x", "fields": {"a": "b"}}]}, "events.0.type"),
    ],
)
def test_a_template_that_breaks_its_contract_is_named(
    template: ContextTemplate, tmp_path: Path, change: dict[str, Any], message: str
):
    assert message in refuse(tmp_path, fields_of(template) | change)


def test_a_section_that_would_always_be_empty_is_refused(template: ContextTemplate, tmp_path: Path):
    fields = fields_of(template)
    fields["sections"][2]["accepts"] = {"types": ["semantic"], "tags": ["vip"]}
    message = refuse(tmp_path, fields)
    assert "section 'notes' must accept what 'facts' of higher priority does not take" in message
    fields["sections"][1]["accepts"]["tags"] = ["domain:billing"]
    assert ContextTemplate.model_validate(fields).sections[2].accepts.tags == ("vip",)


def test_a_file_that_is_no_template_is_named(tmp_path: Path):
    assert "Expecting value" in refuse(tmp_path, "not json")
    assert "name must stand once in an object, got it twice" in refuse(tmp_path, '{"name": "a", "name": "b"}')
    with pytest.raises(TemplateInvalid, match="cannot be read: No such file"):
        load_template(tmp_path / "absent.json")
    with pytest.raises(TemplateInvalid, match="must be one of compliance_review, customer_service, personal"):
        load_template("customer")


def test_shipped_templates_load_and_between_them_take_every_type():
    assert list_templates() == ["compliance_review", "customer_service", "personal_assistant"]
    for name in list_templates():
        shipped = load_template(name)
        assert shipped.name == name
        assert {kind for section in shipped.sections for kind in section.accepts.types} == set(MemoryType)
        assert shipped.events


def test_the_fingerprint_is_of_the_content_and_not_of_the_version(template: ContextTemplate):
    changed = template.model_copy(update={"instruction": "Be long."})
    assert changed.template_version == template.template_version
    assert fingerprint_template(changed) != fingerprint_template(template)
    sections = (template.sections[0].model_copy(update={"render": "* {content}"}), *template.sections[1:])
    assert fingerprint_template(template.model_copy(update={"sections": sections})) != fingerprint_template(
        template
    )
    assert sections[0].line_format != template.sections[0].line_format


def test_the_fingerprint_does_not_depend_on_spelling(template: ContextTemplate):
    fields = template.model_dump(mode="json", exclude_defaults=True)
    reordered = json.dumps(dict(reversed(fields.items())), indent=4, ensure_ascii=True)
    again = ContextTemplate.model_validate_json(reordered)
    assert fingerprint_template(again) == fingerprint_template(template)


def test_what_shipped_templates_say_of_memories_stands_only_beside_memories():
    for name in list_templates():
        shipped = load_template(name)
        assert not re.search(r"record|memor|below", shipped.instruction, re.IGNORECASE)
        assert not any("weight" in section.render for section in shipped.sections)
