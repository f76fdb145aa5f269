from salience_experiments.bench.crash_trial import run_crash_trial
from salience_experiments.bench.crash_writer import FINGERPRINT
from salience_memory.memory_recall import MemoryRecall


def test_nothing_acknowledged_is_lost_and_nothing_is_half_written_after_20_kills(tmp_path):
    def compare_projections(store):
        # Kept in a folder, so that each round catches up from what the round before left.
        with MemoryRecall(store, fingerprint=FINGERPRINT, folder=tmp_path / "index") as recall:
            recall.sync()
            return [name for projection in recall.projections for name in projection.find_differences(store)]

    report = run_crash_trial(tmp_path / "memories.db", kills=20, seed=3, check=compare_projections)
    assert report.faults == []
    assert report.kills == 20
    assert report.acknowledged > 20
