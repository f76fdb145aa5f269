import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from salience_experiments.errors import TrialsError
from salience_experiments.manifests import Manifest, write_manifest
from salience_experiments.report import build_report
from salience_experiments.report.document import Alarm, Heading, Table, render_markdown
from salience_experiments.report.html import render_html
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
        "spec": {"seed": 3, "baseline": "none", "arms": [{"arm": "none"}, {"arm": "reorder"}]} | (spec or {}),
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


def rows_of(text, heading, level="###"):
    """The cells of the first table under a heading."""
    section = text.split(f"{level} {heading}\n", 1)[1].split("\n#", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if ":--" not in line]


def test_every_file_is_written(report):
    names = ("accuracy_by_position", "logprob_difference", "strength_sweep", "cost")
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


def test_u_and_cost_have_their_tables(text):
    assert rows_of(text, "Lost in the middle: U")[1][:4] == ["none", "–", "–", "baseline"]
    assert rows_of(text, "Cost")[1][4] == "1.00×"


def test_the_page_is_self_contained(report):
    page = report["report.html"].decode()
    sources = re.findall(r'(?:src|href)="([^"]{0,40})', page)
    assert len(sources) == 4
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    assert not re.search(r"@import|url\(|<script|<link", page)


def test_svg_is_whole_and_tells_no_date(report):
    svg = report["cost.svg"]
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert b"<dc:date>" not in svg
    assert b"Software" not in report["cost.png"]


def test_a_named_family_of_contrasts_is_all_that_is_tested(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder", "logit_bias[strength=1]")}
    spec = {"contrasts": [["reorder", "none"]]}
    run_dir = write_run(tmp_path / "run", make_trials(arms, n=10), spec)
    text = build_report(run_dir)[0].read_text().replace("\\", "")
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
    text = build_report(write_run(tmp_path / "run", trials))[0].read_text().replace("\\", "")
    assert "INCOMPLETE: 1 trials failed" in text
    assert "(1 FAILED)" in text
    assert "arm 'reorder' has failed trials for items item-9" in text


def test_log_probabilities_alone_make_a_report(tmp_path):
    arms = {label: ARMS[label] for label in ("none", "reorder")}
    trials = [t.model_copy(update={"metric": None}) for t in make_trials(arms, n=30)]
    spec = {"logprob_margin_nats": 0.5}
    paths = {path.name: path for path in build_report(write_run(tmp_path / "run", trials, spec))}
    text = paths["report.md"].read_text().replace("\\", "")
    assert "accuracy_by_position.png" not in paths
    assert "±0.5 nats" in text
    assert rows_of(text, "Gold-answer log-probability")[1][5] == "improved"


def test_several_runs_get_sections_and_figures_of_their_own(run_dir, tmp_path):
    arms = {"none": ARMS["none"]}
    other = write_run(tmp_path / "run-2", make_trials(arms, n=10), spec_name="other")
    paths = build_report([run_dir, other], tmp_path / "out")
    names = {path.name for path in paths}
    assert {"1_needle_depth_run_1-cost.png", "2_other_run_2-cost.png"} <= names
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
    blocks = [Heading(1, "<b>"), Alarm("a & b"), table]
    assert "a\\|b" in render_markdown(blocks, "figures")
    assert "\\<script>" in render_markdown(blocks, "figures")
    page = render_html("<t>", blocks)
    assert "&lt;script&gt;" in page
    assert "<script>" not in page
    assert "<b>" not in page
