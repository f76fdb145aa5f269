import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from salience_memory import Memory, MemoryType, derive_memory_id


def test_a_memory_weighs_as_what_is_declared_and_is_fully_trusted():
    memory = Memory(content="The office closes at six.")
    assert memory.type is MemoryType.EXTERNAL
    assert (memory.semantic_weight, memory.trust, memory.freshness, memory.tags) == (0.9, 1.0, 1.0, ())
    assert memory.effective_weight == 0.9
    assert Memory("The office closes at six.", weight=0.9) == memory


def test_id_is_derived_from_the_content():
    content = "Zoë prefers tea. 她喜欢茶"
    memory_id = Memory(content=content).memory_id
    assert memory_id == derive_memory_id(content) == "m-" + hashlib.sha256(content.encode()).hexdigest()[:12]
    assert Memory(content=content, tags=("drink",)).memory_id == memory_id
    assert Memory(content=content + ".").memory_id != memory_id


def test_a_given_id_is_kept_and_an_empty_one_refused():
    assert Memory(content="x", memory_id="order-7").memory_id == "order-7"
    with pytest.raises(ValidationError, match="memory_id"):
        Memory(content="x", memory_id="")


@pytest.mark.parametrize("content", ["", " ", "\n\t\u3000"])
def test_blank_content_is_refused(content):
    with pytest.raises(ValidationError, match="content must hold text") as refusal:
        Memory(content=content)
    assert refusal.value.error_count() == 1


def test_content_is_kept_to_the_character():
    assert Memory(content="  a\n").content == "  a\n"


def test_missing_content_is_the_only_thing_reported():
    with pytest.raises(ValidationError) as refusal:
        Memory.model_validate({})
    assert [error["loc"] for error in refusal.value.errors()] == [("content",)]


def test_content_that_is_not_unicode_is_refused():
    with pytest.raises(ValidationError, match="content"):
        Memory(content="\ud800")


def test_weight_of_one_is_refused_with_the_reason():
    with pytest.raises(ValidationError, match=r"must be in \[0.5, 0.99\], got 1.0: .*infinite odds"):
        Memory(content="x", semantic_weight=1.0)


@pytest.mark.parametrize("weight", [0.0, 0.49, 0.991, -1.0, float("nan"), float("inf")])
def test_weight_out_of_range_is_refused(weight):
    with pytest.raises(ValidationError, match=r"semantic_weight must be in \[0.5, 0.99\]"):
        Memory(content="x", semantic_weight=weight)


@pytest.mark.parametrize("field", ["trust", "freshness"])
@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan")])
def test_trust_and_freshness_out_of_range_are_refused(field, value):
    with pytest.raises(ValidationError, match=field):
        Memory.model_validate({"content": "x", field: value})


def test_unknown_fields_types_and_blank_tags_are_refused():
    for extra in ({"wieght": 0.9}, {"type": "rumour"}, {"tags": (" ",)}):
        with pytest.raises(ValidationError, match=next(iter(extra))):
            Memory.model_validate({"content": "x"} | extra)


def test_a_memory_is_immutable_hashable_and_survives_json():
    memory = Memory(content="x", type=MemoryType.TASK, semantic_weight=0.9, tags=("a", "b"))
    with pytest.raises(ValidationError, match="frozen"):
        memory.content = "y"
    assert len({memory, Memory.model_validate_json(memory.model_dump_json())}) == 1


_UNIT = st.floats(0.0, 1.0)


@given(weight=st.floats(0.5, 0.99), trust=_UNIT, freshness=_UNIT)
def test_effective_weight_lies_between_neutral_and_the_declared_weight(weight, trust, freshness):
    memory = Memory(content="x", semantic_weight=weight, trust=trust, freshness=freshness)
    assert 0.5 <= memory.effective_weight <= weight
    assert memory.effective_weight == pytest.approx(0.5 + (weight - 0.5) * trust * freshness)


def test_full_trust_and_freshness_leave_the_weight_as_declared():
    assert Memory(content="x", semantic_weight=0.9).effective_weight == pytest.approx(0.9)
