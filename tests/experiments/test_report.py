import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from salience_experiments.errors import TrialsError
from salience_experiments.manifests import Manifest, write_manifest
from salience_experiments.report import build_report
from salience_experiments.report.analysis import read_arms, summarise
from salience_experiments.report.document import Alarm, Heading, Listing, Table, render_html, render_markdown
from salience_experiments.report.figures import (
    MAX_ARMS_A_PANEL,
    Grid,
    arm_styles,
    draw_points,
    find_sweeps,
    group_arms,
)
from salience_experiments.runner import run_spec
from salience_experiments.spec import ArmSpec
from salience_experiments.trials import Shard, Trial, TrialLog, encode_line

POSITIONS = ("first", "middle", "last")
ARMS = {
    "none": ({"weights": "none"}, 0.0),
    "reorder": ({"weights": "recall"}, 0.1),
    "logit_bias[strength=1]": ({"weights": "recall", "strength": 1.0, "depth": [0.5, 1.0]}, 0.2),
    "logit_bias[strength=2]": ({"weights": "recall", "strength": 2.0, "depth": [0.5, 1.0]}, 0.3),
    "logit_bias[strength=1,oracle]": ({"weights": "oracle", "strength": 1.0, "depth": [0.5, 1.0]}, 0.4),
    "logit_bias[strength=1,wrong]": ({"weights": "wrong", "strength": 1.0, "depth": [0.5, 1.0]}, -0.3),
}

SPEC_ARMS = [
    {"arm": "none"},
    {"arm": "reorder"},
    {"arm": "logit_bias", "params": {"strength": [1.0, 2.0]}},
    {"arm": "logit_bias", "weights": ["oracle", "wrong"], "params": {"strength": 1.0}},
]
DEPTHS = [[0.5, 1.0], [0.0, 1.0]]
MANY_ARMS = [
    {"arm": "none"},
    *(
        {"arm": "logit_bias", "weights": source, "params": {"strength": [1.0, 2.0], "depth": DEPTHS}}
        for source in ("recall", "oracle", "wrong")
    ),
    {
        "arm": "share_control",
        "params": {"share": [0.1, 0.2], "depth": [[0.5, 1.0]], "query_scope": "question"},
    },
    {"arm": "share_control", "params": {"share": 0.2, "depth": [[0.5, 1.0]], "query_scope": "all"}},
    *({"arm": edit} for edit in ("reorder", "repeat", "marker", "query_aware", "top_only")),
]


def cells_of(arms):
    """Labels and parameters of a spec's cells, as `make_trials` takes them."""
    cells = [cell for arm in arms for cell in ArmSpec.model_validate(arm).cells()]
    return {
        cell.label: ({"weights": str(cell.weights) if cell.arm != "none" else "none", **cell.params}, 0.1)
        for cell in cells
    }


def make_trials(arms=ARMS, n=50):
    rng = np.random.default_rng(0)
    trials = []
    for index in range(n):
        for position in POSITIONS:
            luck, noise = rng.random(), rng.normal(size=len(arms))
            for (label, (params, gain)), shift in zip(arms.items(), noise, strict=True):
                level = 0.4 + gain + (0.2 if position != "middle" else 0)
                common = {
                    "split": "dev" if index % 5 == 0 else "test",
                    "item_index": index,
                    "question": f"q{index}",
                }
                trials.append(
                    Trial(
                        item=f"item-{index}",
                        position=position,
                        arm=label,
                        params=params | common | {"hit_gold": index % 4 != 0},
                        prompt_sha256=f"{index}{position}{'edited' if label == 'reorder' else ''}",
                        prompt_tokens=100,
                        metric=float(luck < level),
                        gold_logprob=float(-3 + gain + 0.1 * shift),
                        impl="reference",
                        wall_s=0.2 + 0.01 * index,
                    )
                )
    return trials


def write_run(run_dir, trials, spec=None, **changes):
    run_dir.mkdir(parents=True)
    (run_dir / "trials.jsonl").write_bytes(b"".join(encode_line(trial) for trial in trials))
    fields = {
        "spec_name": "needle_depth",
        "spec_sha256": "ab" * 32,
        "spec": {"seed": 3, "baseline": "none", "arms": SPEC_ARMS} | (spec or {}),
        "commit": "1234567",
        "dirty": False,
        "versions": {"torch": "2.13"},
        "device": "cpu",
        "threads": 2,
        "model": {"source": "tiny/model", "revision": "main", "dtype": "float32"},
        "impls": ("reference",),
        "status": "complete",
        "started": "2025-01-01T00:00:00Z",
        "finished": "2025-01-01T01:00:00Z",
        "n_trials": len(trials),
        "n_expected": len(trials),
    }
    write_manifest(run_dir, Manifest.model_validate(fields | changes))
    return run_dir


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("results") / "run-1", make_trials())


@pytest.fixture(scope="module")
def report(run_dir):
    return {path.name: path.read_bytes() for path in build_report(run_dir)}


@pytest.fixture(scope="module")
def text(report):
    return report["report.md"].decode().replace("\\", "")


def read_report(*arguments, **options):
    return build_report(*arguments, **options)[0].read_text().replace("\\", "")


def rows_of(text, heading, level="###"):
    """The cells of the first table under a heading."""
    section = text.split(f"{level} {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if ":--" not in line]


def test_every_file_is_written(report):
    names = ("accuracy_by_position", "logprob_difference", "strength_sweep")
    expected = {"report.md", "report.html", *(f"{name}.{kind}" for name in names for kind in ("png", "svg"))}
    assert set(report) == expected
    assert all(data.startswith(b"\x89PNG") for name, data in report.items() if name.endswith("png"))


def test_the_same_run_gives_the_same_bytes_elsewhere(run_dir, report, tmp_path):
    again = build_report([run_dir], tmp_path / "elsewhere")
    assert {path.name: path.read_bytes() for path in again} == report


def test_the_header_says_what_was_run(text):
    header = dict(rows_of(text, "needle_depth", level="#"))
    assert header["status"] == "complete"
    assert header["model"] == "tiny/model main"
    assert header["dtype"] == "float32"
    assert header["device"] == "cpu, 2 threads"
    assert header["implementation"] == "reference"
    assert header["seed"] == "3"
    assert header["commit"] == "1234567"
    assert "ab" * 32 in header["spec"]
    assert header["n"] == "900 trials, 50 items, 6 arms"
    assert header["time"].startswith("6.7 min in the model, 2.25 trials a second")
    assert "analysis" not in header


def test_the_first_lines_tell_every_difference_in_words(text):
    title, opening, findings, *_ = text.split("\n\n")
    assert title == "# needle_depth"
    assert opening.startswith("40 test items. Change of the accuracy in points, with 95 % intervals: of 15 ")
    assert opening.endswith("Unless said otherwise: depth 0.5-1, weights by recall.")
    lines = findings.splitlines()
    assert len(lines) == 15
    pattern = (
        r"- logit_bias, strength 1, oracle weights against none, gold middle: \+\d+\.\d \[.*\], improved"
    )
    assert any(re.fullmatch(pattern, line) for line in lines)


def test_cells_carry_n_and_wilson_intervals(text):
    head, baseline, *others = rows_of(text, "By arm and position")
    assert head[:7] == ["arm", "weights", "n", "first", "middle", "last", "all"]
    assert baseline[:3] == ["none", "–", "40"]
    assert re.fullmatch(r"\d+\.\d \[\d+\.\d, \d+\.\d\]", baseline[3])
    assert [row[1] for row in others if row[0].startswith("logit_bias[strength=1")] == [
        "recall",
        "oracle (upper bound)",
        "wrong (negative control)",
    ]
    assert [row[0] for row in others][:2] == ["reorder", "logit_bias[strength=1]"]


def test_contrasts_carry_interval_p_holm_and_verdict(text):
    head, *rows = rows_of(text, "Paired differences")
    pooled = {row[0]: dict(zip(head, row, strict=True)) for row in rows[:5]}
    oracle, wrong = pooled["logit_bias[strength=1,oracle]"], pooled["logit_bias[strength=1,wrong]"]
    assert (oracle["verdict"], oracle["n"], oracle["questions"]) == ("improved", "120", "40")
    assert (wrong["verdict"], wrong["weights"]) == ("worse", "wrong (negative control)")
    assert re.fullmatch(r"\[\+\d+\.\d, \+\d+\.\d\]", oracle["95 % interval"])
    assert oracle["p Holm"] == "<0.001"
    assert (pooled["reorder"]["prompt"], oracle["prompt"]) == ("edited", "same")


def test_dev_and_test_are_apart_and_test_comes_first(text):
    assert text.index("## Test items") < text.index("## Development slice: for tuning, not a headline")
    assert "40 items from 40 questions" in text
    assert "10 items from 10 questions" in text
    assert text.count("accuracy_by_position.png") == 1


def test_u_has_its_table(text):
    assert rows_of(text, "Lost in the middle: U")[1][:4] == ["none", "–", "–", "baseline"]


def test_the_secondary_measure_follows_with_intervals_and_a_pooled_column(text):
    head, baseline, *_ = rows_of(text, "Gold-answer log-probability (secondary)")
    assert head == ["arm", "weights", "n", "first", "middle", "last", "all"]
    assert all(re.fullmatch(r"-\d\.\d{3} \[-\d\.\d{3}, -\d\.\d{3}\]", cell) for cell in baseline[3:])


def test_methods_state_their_rules(text):
    assert "from at least 10 questions, and for accuracy within ±2 points from at least 133" in text


def test_the_page_is_self_contained(report):
    page = report["report.html"].decode()
    sources = re.findall(r'(?:src|href)="([^"]{0,40})', page)
    assert len(sources) == 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not re.search(r"@import|url\(|<script|<link", page)


def test_svg_is_whole_and_tells_no_date(report):
    svg = report["strength_sweep.svg"]
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert b"<dc:date>" not in svg
    assert b"Software" not in report["strength_sweep.png"]


def test_a_named_family_of_contrasts_is_all_that_is_tested(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder", "logit_bias[strength=1]")}
    spec = {"contrasts": [["reorder", "none"]]}
    text = read_report(write_run(tmp_path / "run", make_trials(arms, n=10), spec))
    assert "Holm over 1 results" in text
    assert {row[0] for row in rows_of(text, "Paired differences")} == {"arm", "reorder"}


def test_an_incomplete_run_is_marked_loudly_and_not_compared(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder")}
    trials = make_trials(arms, n=10)[:-1]
    run_dir = write_run(tmp_path / "run", trials, status="interrupted", n_expected=60, dirty=True)
    paths = {path.name: path for path in build_report(run_dir)}
    text = paths["report.md"].read_text().replace("\\", "")
    assert text.startswith("# needle_depth (INCOMPLETE)")
    assert "INCOMPLETE: the run has status interrupted; 59 of 60 trials are there" in text
    assert (
        "Not compared: reorder vs none: arm 'reorder' lacks items that arm 'none' holds: item-9 at last"
        in text
    )
    assert "The working tree was dirty" in text
    assert "## Test items (INCOMPLETE)" in text
    assert 'class="alarm"' in paths["report.html"].read_text()


def test_failed_trials_are_counted_not_skipped(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder")}
    trials = make_trials(arms, n=10)
    trials[-1] = trials[-1].model_copy(update={"error": "out of memory", "metric": None})
    text = read_report(write_run(tmp_path / "run", trials))
    assert "INCOMPLETE: 1 trials failed" in text
    assert "(1 FAILED)" in text
    assert "arm 'reorder' has failed trials for items item-9" in text


def test_a_spec_judged_by_log_probability_gets_a_whole_report_of_it(tmp_path):
    trials = [t.model_copy(update={"metric": None}) for t in make_trials(n=30)]
    spec = {"metric": "gold_logprob", "logprob_margin_nats": 0.5}
    paths = {path.name: path for path in build_report(write_run(tmp_path / "run", trials, spec))}
    text = paths["report.md"].read_text().replace("\\", "")
    assert {"logprob_difference.png", "strength_sweep.png"} <= set(paths)
    assert "accuracy_by_position.png" not in paths
    assert "Change of the gold-answer log-probability in nats" in text.split("\n\n")[1]
    assert rows_of(text, "By arm and position")[0][3:] == ["first", "middle", "last", "all", "gold weighted"]
    assert "–" not in rows_of(text, "By arm and position")[1][3:7]
    assert "equivalence margin ±0.5 nats" in text
    assert {row[5] for row in rows_of(text, "Paired differences")[1:6]} == {"improved", "worse"}
    assert "ΔU (nats)" in rows_of(text, "Lost in the middle: U")[0]
    assert "(secondary)" not in text
    assert "in points" not in text


def test_the_specs_metric_comes_first_where_trials_have_both(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder")}
    spec = {"metric": "gold_logprob"}
    text = read_report(write_run(tmp_path / "run", make_trials(arms, n=10), spec))
    assert "Accuracy (secondary)" in text
    assert "Change of the gold-answer log-probability" in text


def test_sweeps_follow_paired_changes_with_a_line_per_other_setting():
    spec = {"metric": "gold_logprob", "arms": MANY_ARMS}
    trials = [t.model_copy(update={"metric": None}) for t in make_trials(cells_of(MANY_ARMS), n=6)]
    recall, oracle, wrong, share = find_sweeps(summarise(spec, trials, "test", seed=0))
    assert recall.title == "logit_bias, weights recall"
    assert {name: [dose for dose, _ in line] for name, line in recall.lines.items()} == {
        "depth 0.5-1": [1.0, 2.0],
        "depth 0-1": [1.0, 2.0],
    }
    assert oracle.lines.keys() == wrong.lines.keys() == recall.lines.keys()
    assert (share.title, share.dose) == ("share_control, weights recall\ndepth 0.5-1", "share")
    assert {contrast.measure for line in share.lines.values() for _, contrast in line} == {"gold_logprob"}


def test_names_drop_what_most_arms_share_and_say_it_once():
    arms, shared = read_arms(make_trials(cells_of(MANY_ARMS), n=1), {"arms": MANY_ARMS})
    names = [arm.name for arm in arms]
    assert len(set(names)) == len(names) == 21
    assert {
        "none",
        "share_control, share 0.1",
        "share_control, share 0.2, query_scope all",
        "reorder",
    } <= set(names)
    assert "logit_bias, strength 2, depth 0-1, wrong weights" in names
    assert shared == "Unless said otherwise: depth 0.5-1, query_scope question, weights by recall."


def test_a_label_of_ones_own_is_a_name_and_keeps_its_family():
    spec_arms = [
        {"arm": "none"},
        {"arm": "share_control", "label": "steered a bit", "params": {"share": 0.2}},
    ]
    arms, _ = read_arms(make_trials(cells_of(spec_arms), n=1), {"arms": spec_arms})
    assert [(arm.name, arm.family) for arm in arms] == [("none", "none"), ("steered a bit", "share_control")]


@pytest.mark.parametrize("spec_arms", [SPEC_ARMS, MANY_ARMS])
def test_legends_lie_below_and_axes_keep_their_width(spec_arms):
    arms, shared = read_arms(make_trials(cells_of(spec_arms), n=1), {"arms": spec_arms})
    panels = group_arms(arms)
    assert {arm.label for panel in panels for arm in panel.arms} == set(cells_of(spec_arms))
    assert max(len(panel.arms) for panel in panels) <= MAX_ARMS_A_PANEL + 1
    styles = arm_styles(panels)
    grid = Grid([[styles[arm.label].label for arm in panel.arms] for panel in panels], "title", shared)
    for axis, panel in zip(grid.axes, panels, strict=True):
        for arm in panel.arms:
            draw_points(axis, [(0, 0.5, 0.4, 0.6)], styles[arm.label])
        grid.finish_panel(axis, panel.title)
    FigureCanvasAgg(grid.canvas).draw()
    panel_width = 1 if len(panels) == 1 else 1 / 2
    for axis in grid.axes:
        box = axis.get_window_extent()
        assert box.width >= 0.5 * panel_width * grid.canvas.bbox.width
        assert box.height >= 1.8 * grid.canvas.dpi
        legend = axis.get_legend().get_window_extent()
        assert legend.y1 < box.y0
        assert legend.x1 <= box.x0 + panel_width * grid.canvas.bbox.width


def test_a_steered_arm_that_saw_another_prompt_is_not_compared(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder", "logit_bias[strength=1]")}
    trials = make_trials(arms, n=10)
    trials[-1] = trials[-1].model_copy(update={"prompt_sha256": "changed"})
    text = read_report(write_run(tmp_path / "run", trials))
    assert (
        "Not compared: logit_bias[strength=1] vs none: arm 'logit_bias[strength=1]' saw other prompts" in text
    )
    assert {row[0] for row in rows_of(text, "Paired differences")} == {"arm", "reorder"}


def test_the_analysis_of_a_current_spec_overrides_the_manifests(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder", "logit_bias[strength=1]")}
    run_dir = write_run(tmp_path / "run", make_trials(arms, n=10), {"contrasts": [], "metric": "accuracy"})
    analysis = {
        "contrasts": (("reorder", "none"),),
        "metric": "accuracy",
        "description": "Why this was run.",
        "seed": 99,
    }
    text = read_report(run_dir, analysis=analysis)
    header = dict(rows_of(text, "needle_depth", level="#"))
    assert header["analysis"] == "contrasts, description as given now, not as in the run's manifest"
    assert header["seed"] == "3"
    assert "Why this was run." in text
    assert "Holm over 1 results" in text
    with pytest.raises(ValueError, match="analysis not"):
        build_report([run_dir, run_dir], tmp_path / "out", analysis=analysis)


def test_a_limited_run_is_marked_loudly(make_spec, options, recall, tiny_lm):
    run_dir = run_spec(make_spec(), dataclasses.replace(options, limit=1), lambda: tiny_lm, recall)
    assert "LIMITED: only the first 1 items of the spec were run" in read_report(run_dir)
    run_spec(make_spec(), options, lambda: tiny_lm, recall)
    assert "LIMITED" not in read_report(run_dir)


def test_several_runs_get_sections_and_figures_of_their_own(run_dir, tmp_path):
    arms = {"none": ARMS["none"]}
    other = write_run(tmp_path / "run-2", make_trials(arms, n=10), spec_name="other")
    paths = build_report([run_dir, other], tmp_path / "out")
    names = {path.name for path in paths}
    assert {"1_needle_depth_run_1-strength_sweep.png", "2_other_run_2-accuracy_by_position.png"} <= names
    assert re.findall(r"^# (.*)$", paths[0].read_text().replace("\\", ""), re.M) == ["needle_depth", "other"]
    assert str(tmp_path) not in paths[0].read_text()
    with pytest.raises(ValueError, match="out_dir must be given"):
        build_report([run_dir, other])


def test_shards_are_reported_as_one_run(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder")}
    trials = make_trials(arms, n=10)
    whole = write_run(tmp_path / "run", trials)
    expected = build_report(whole)[0].read_text()
    split = tmp_path / "split" / "run"
    manifest = Manifest.model_validate_json((whole / "manifest.json").read_bytes())
    for index in (1, 2):
        mine = [trial for trial in trials if trial.params["item_index"] % 2 == index - 1]
        with TrialLog(split, Shard(index, 2)) as log:
            for trial in mine:
                log.append(trial)
        update = {"shard": index, "shards": 2, "n_expected": len(mine)}
        write_manifest(split, manifest.model_copy(update=update), Shard(index, 2))
    merged = build_report(split)[0].read_text()
    assert merged.split("## Test items")[1] == expected.split("## Test items")[1]


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(TrialsError, match=r"must hold manifest.json"):
        build_report(tmp_path)


def test_markup_in_names_stays_text():
    table = Table(("a|b", "c"), (("<script>", "*x*"),), "cap_tion")
    blocks = [Heading(1, "<b>"), Alarm("a & b"), Listing(("<i>", "two")), table]
    assert "a\\|b" in render_markdown(blocks, "figures")
    assert "\\<script>" in render_markdown(blocks, "figures")
    page = render_html("<t>", blocks)
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<li>&lt;i&gt;</li>" in page
