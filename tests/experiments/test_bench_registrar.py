from typer.testing import CliRunner

from salience_experiments.bench import cli
from salience_experiments.bench.registrar import (
    ORDINARY,
    SLOW,
    RegistrarTimes,
    measure_registrar,
    registrar_bars,
)
from salience_memory.registrar.utterances import MAX_SENTENCE_CHARS, split_sentences


def test_every_utterance_is_measured_as_often_as_asked():
    times = measure_registrar(2)
    assert (len(times.ordinary_s), len(times.slow_s)) == (2 * len(ORDINARY), len(SLOW))
    assert all(seconds >= 0.0 for seconds in (*times.ordinary_s, *times.slow_s))


def test_what_is_made_to_be_slow_is_read_and_long():
    assert all(split_sentences(text) for text in (*ORDINARY, *SLOW))
    assert min(map(len, SLOW)) > 0.8 * MAX_SENTENCE_CHARS


def test_bars_are_a_millisecond_for_the_median_the_hundredth_and_the_slowest():
    times = RegistrarTimes((0.0001,) * 98 + (0.0009, 0.002), (0.0005, 0.0015))
    assert [round(bar.value, 6) for bar in registrar_bars(times)] == [0.1, 0.9, 1.5]
    assert [bar.is_met for bar in registrar_bars(times)] == [True, True, False]


def test_the_command_prints_the_bars(tmp_path):
    path = tmp_path / "out.json"
    run = CliRunner().invoke(cli.bench_commands, ["registrar", "--repeats", "1", "--json", str(path)])
    assert run.exit_code == 0, run.output
    assert "ordinary utterance, p99 ms" in run.output
    assert path.is_file()
