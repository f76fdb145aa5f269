"""Specs: what a grid expands to, and that what is misspelt is refused with its place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from salience_experiments.errors import SpecError
from salience_experiments.spec import ArmSpec, ExperimentSpec, load_spec
from salience_experiments.weight_sources import WeightSource

GOOD: dict[str, Any] = {
    "name": "needle-depth",
    "model": {"source": "bundled:smollm2-135m-instruct"},
    "task": {"name": "kv", "params": {"n_keys": 10, "n_items": 5}},
    "arms": [{"arm": "none"}, {"arm": "logit_bias"}],
}

Load = Callable[..., ExperimentSpec]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """`load(**fields)`: the good spec with some fields replaced, written and read back."""

    def write_and_load(**fields: Any) -> ExperimentSpec:
        path = tmp_path / "spec.yaml"
        path.write_text(yaml.safe_dump(GOOD | fields, sort_keys=False))
        return load_spec(path)

    return write_and_load


def labels(spec: ExperimentSpec) -> list[str]:
    return [cell.label for cell in spec.cells()]


def test_a_spec_says_everything_by_default(load: Load):
    spec = load()
    assert labels(spec) == ["none", "logit_bias"]
    assert (spec.positions, spec.split, spec.baseline) == (("first", "middle", "last"), "all", "none")
    assert (spec.weighting.weight, spec.weighting.top_k) == (0.88, 1)


def test_lists_expand_to_every_combination_with_a_label_each(load: Load):
    arm = {
        "arm": "logit_bias",
        "weights": ["recall", "wrong"],
        "params": {"strength": [1.0, 2], "phase": "both"},
    }
    spec = load(arms=[{"arm": "none"}, arm])
    assert labels(spec)[1:] == [
        "logit_bias[strength=1,phase=both]",
        "logit_bias[strength=2,phase=both]",
        "logit_bias[strength=1,phase=both,wrong]",
        "logit_bias[strength=2,phase=both,wrong]",
    ]
    last = spec.cells()[-1]
    assert (last.weights, last.params) == (WeightSource.WRONG, {"strength": 2, "phase": "both"})


def test_a_list_within_a_list_is_one_value(load: Load):
    spec = load(arms=[{"arm": "none"}, {"arm": "logit_bias", "params": {"depth": [[0.5, 1.0], [0.0, 0.5]]}}])
    assert labels(spec)[1:] == ["logit_bias[depth=0.5-1]", "logit_bias[depth=0-0.5]"]
    assert spec.cells()[1].params == {"depth": (0.5, 1.0)}


def test_a_label_of_ones_own_stands_for_one_cell(load: Load):
    spec = load(arms=[{"arm": "none"}, {"arm": "logit_bias", "label": "ours"}], contrasts=[["ours", "none"]])
    assert (labels(spec), spec.contrasts) == (["none", "ours"], (("ours", "none"),))
    with pytest.raises(ValueError, match="label 'x' must stand for one cell, got 2"):
        ArmSpec(arm="logit_bias", label="x", params={"strength": [1, 2]}).cells()


def test_the_hash_is_that_of_what_is_run(load: Load):
    plain = load().sha256()
    assert plain == ExperimentSpec.model_validate(GOOD).sha256()
    assert plain == load(description="x", contrasts=[["logit_bias", "none"]], power={"effect": 0.1}).sha256()
    changed = [
        load(seed=1),
        load(split="dev"),
        load(model={"source": "bundled:gemma-3-270m"}),
        load(task={"name": "kv", "params": {"n_keys": 11, "n_items": 5}}),
        load(arms=[{"arm": "none"}, {"arm": "logit_bias", "params": {"strength": 1.5}}]),
    ]
    assert len({plain, *(spec.sha256() for spec in changed)}) == 6


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nmae": 1}, r": nmae is not a field of a spec$"),
        ({"task": {"nmae": "kv"}}, r": task\.name is missing; task\.nmae is not a field of a spec$"),
        ({"model": {"source": "x", "dtpye": "auto"}}, r": model\.dtpye is not a field of a spec$"),
        (
            {"arms": [{"arm": "none"}, {"arm": "a", "parms": {}}]},
            r": arms\.1\.parms is not a field of a spec$",
        ),
        ({"weighting": {"wieght": 0.9}}, r": weighting\.wieght is not a field of a spec$"),
        ({"power": {"efect": 0.1}}, r": power\.efect is not a field of a spec$"),
        ({"arms": [{"arm": "none"}, {"arm": "a", "params": 3}]}, r"arms\.1\.params: .* dictionary, got '3'"),
        (
            {"arms": [{"arm": "none"}, {"arm": "a", "weights": ["recall", "gold"]}]},
            r"arms\.1\.weights must be one of recall, oracle, wrong, all, random, got 'gold'$",
        ),
        ({"arms": [{"arm": "a", "weights": []}]}, "weights of arm 'a' must list at least one value"),
        ({"arms": [{"arm": "a", "params": {"x": []}}]}, "x of arm 'a' must list at least one value"),
        ({"arms": [{"arm": "none"}] * 2}, r"arms must have different labels, got \['none'\] more than once"),
        ({"arms": []}, r"arms: .*at least 1 item"),
        ({"baseline": "nope"}, r"must name arms \['none', 'logit_bias'\], got 'nope'$"),
        ({"contrasts": [["logit_bias", "nope"]]}, r"contrasts must name arms .*, got 'nope'$"),
        (
            {"positions": ["first", "first"]},
            r"positions must name each position once, got \['first', 'first'\]$",
        ),
        ({"weighting": {"weight": 1.0}}, r"weighting\.weight: .* less than or equal to 0\.99, got '1\.0'"),
        ({"weighting": {"weight": 0.5}}, r"weighting\.weight: .* greater than 0\.5, got '0\.5'"),
        ({"max_new_tokens": -1}, r"max_new_tokens: .* greater than or equal to 0, got '-1'"),
        ({"split": "train"}, r"split: .*'dev', 'test' or 'all', got 'train'"),
        ({"name": "Has Blanks"}, r"name: .*, got 'Has Blanks'"),
    ],
)
def test_what_a_spec_must_not_say_is_named(load: Load, fields: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message) as caught:
        load(**fields)
    assert str(caught.value).startswith("spec ")
    assert "\n" not in str(caught.value)


def test_a_file_that_holds_no_spec_is_refused_in_one_line(tmp_path: Path):
    path = tmp_path / "spec.yaml"
    with pytest.raises(SpecError, match=r"spec .*spec\.yaml must be a file or one of .*, got neither$"):
        load_spec(path)
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path)
    for text, message in (
        (b"- 1", "must hold a mapping of fields, got list"),
        (b"", "must hold a mapping of fields, got NoneType"),
        (b"a: [", "is not YAML"),
        (b"\xff", "cannot be read"),
    ):
        path.write_bytes(text)
        with pytest.raises(SpecError, match=message) as caught:
            load_spec(path)
        assert "\n" not in str(caught.value)
