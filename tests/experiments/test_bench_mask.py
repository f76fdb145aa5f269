import json
import sys

import pytest
from typer.testing import CliRunner

from salience_experiments.bench import cli, mask
from salience_experiments.bench.mask import (
    EngineSpeed,
    MaskCase,
    find_peers,
    mask_bars,
    mask_rows,
    measure_masks,
)
from salience_experiments.errors import DataFileMissing, ExperimentsError
from salience_models.constraints import Vocabulary
from salience_models.constraints.bans import contains_banned

PHRASES = mask.ban_phrases(100)
TEXT = "The quick brown fox met a lazy dog.\n\nA badger came by.\n\nNaïve? No: 東方."
TOKENS = (
    *(bytes([value]) for value in range(256)),
    *(
        piece.encode()
        for phrase in PHRASES[:40]
        for piece in (phrase, " " + phrase[:3], phrase[2:], phrase[1:4])
    ),
    "東".encode()[:2],
    None,
)
VOCABULARY = Vocabulary.from_bytes(TOKENS, eos_token_ids=[len(TOKENS) - 1])


class FakePeer:
    """Counts its calls."""

    built = 0

    def __init__(self, phrases, vocabulary):
        FakePeer.built += 1
        self.calls = []

    def mask(self):
        self.calls.append("mask")

    def advance(self, token_id):
        self.calls.append(token_id)

    def restart(self):
        self.calls.append("restart")


def speed(engine, case, mean_s, *, n_vocab=100, compile_s=0.1):
    return EngineSpeed(engine, case, n_vocab, (compile_s,), (mean_s,), (mean_s * 2,))


def test_a_hundred_phrases_are_the_same_every_time_and_all_different():
    assert mask.ban_phrases(100) == PHRASES
    assert len(set(mask.ban_phrases(1000))) == 1000


def test_prose_without_data_is_the_repositorys_own(tmp_path):
    assert "Salience" in mask.read_prose(None, 10_000)
    with pytest.raises(DataFileMissing, match="is missing"):
        mask.read_prose(tmp_path, 100)


def test_paragraphs_with_a_phrase_are_not_read():
    kept = mask.without_phrases(TEXT, PHRASES)
    assert kept == "The quick brown fox met a lazy dog."
    assert not contains_banned(kept, PHRASES)


def test_a_widened_vocabulary_keeps_its_tokens_and_adds_frequent_pieces():
    wide = mask.widen_vocabulary(VOCABULARY, TEXT, len(TOKENS) + 50)
    assert wide.token_bytes[: len(TOKENS)] == TOKENS
    assert len(set(wide.token_bytes)) == len(set(TOKENS)) + 50
    padded = mask.widen_vocabulary(VOCABULARY, "ab", len(TOKENS) + 50)
    assert padded.n_vocab == len(TOKENS) + 50
    assert padded.token_bytes[-1] is None


def test_the_greedy_cut_spells_the_text_with_the_longest_tokens():
    ids = mask.cut_greedily(TEXT + "badger", VOCABULARY)
    assert b"".join(TOKENS[i] for i in ids) == (TEXT + "badger").encode()
    assert TOKENS[ids[-1]] == b"badger"


def test_every_engine_reads_every_token_in_every_pass_and_only_ours_compiles_again():
    FakePeer.built = 0
    made = []

    def build(phrases, vocabulary):
        made.append(FakePeer(phrases, vocabulary))
        return made[-1]

    case = MaskCase("small", VOCABULARY, (65, 66))
    ours, peer = measure_masks(case, PHRASES, {"peer": build}, 3)
    assert made[0].calls == ["restart", "mask", 65, "mask", 66] * 3
    assert (len(ours.compile_s), len(peer.compile_s)) == (3, 1)
    assert len(ours.mean_s) == len(peer.p99_s) == 3
    assert (ours.engine, ours.n_vocab) == ("ours", len(TOKENS))


def test_bars_hold_ours_to_ten_microseconds_on_the_smallest_and_below_each_peer_everywhere():
    speeds = [
        speed("ours", "small", 9e-6),
        speed("peer", "small", 12e-6),
        speed("ours", "large", 30e-6, n_vocab=200, compile_s=0.3),
        speed("peer", "large", 20e-6, n_vocab=200),
    ]
    rows = mask_rows(speeds)
    assert [(row.peer, row.case["case"], row.timing.ratio) for row in rows] == [
        ("peer", "small", pytest.approx(0.75)),
        ("peer", "large", pytest.approx(1.5)),
    ]
    missed = [bar.name for bar in mask_bars(speeds, rows) if not bar.is_met]
    assert missed == ["ours, large: compile ms", "ours to peer, large: ratio"]


def test_a_peer_that_is_not_installed_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(ExperimentsError, match="xgrammar is not installed: pip install --no-deps xgrammar"):
        find_peers(["xgrammar"])
    with pytest.raises(ValueError, match="peers must be among xgrammar, llguidance, got 'outlines'"):
        find_peers(["outlines"])
    assert find_peers([]) == {}


@pytest.mark.parametrize("name", ["xgrammar", "llguidance"])
def test_a_peer_bans_what_it_was_told_to(name):
    pytest.importorskip(name)
    for text, is_last_taken in ((b"badges", True), (b"badger", False), (b"a/b", False)):
        stepper = find_peers([name])[name](["badger", "a/b"], VOCABULARY)
        stepper.advance(ord("b"))
        stepper.restart()
        for token_id in text[:-1]:
            stepper.mask()
            assert stepper.advance(token_id)
        assert bool(stepper.advance(text[-1])) is is_last_taken


def test_the_command_prints_engines_and_bars_and_writes_json(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "load_mask_cases", lambda *_: [MaskCase("small", VOCABULARY, (65, 66, 67))])
    path = tmp_path / "mask.json"
    arguments = ["mask", "--peers", "", "--repeats", "1", "--json", str(path)]
    run = CliRunner().invoke(cli.bench_commands, arguments)
    assert run.exit_code == 0, run.output
    assert "ours, small: mean µs a token" in run.output
    assert json.loads(path.read_text())["facts"]["speeds"][0]["engine"] == "ours"
