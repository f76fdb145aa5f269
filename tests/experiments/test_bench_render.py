"""The render benchmark measures what it says, on the memories it says."""

from salience_experiments.bench.render import RenderTiming, build_memories, measure_render, render_bars


def test_each_way_to_render_is_timed_and_only_the_renderers_own_time_has_a_bar():
    timings = measure_render(build_memories(60), 2, lambda text: len(text) // 2)
    assert [timing.name for timing in timings] == [
        "all rendered, counts excluded",
        "cut to budget, counts excluded",
        "all rendered, counts included",
        "cut to budget, counts included",
    ]
    assert [(timing.n_rendered, timing.n_truncated) for timing in timings[::2]] == [(60, 0), (60, 0)]
    assert all(timing.n_rendered + timing.n_truncated == 60 for timing in timings)
    assert timings[3].n_truncated > timings[1].n_truncated
    assert [bar.name for bar in render_bars(timings, 60)] == [
        "60 memories, all rendered, counts excluded, median ms",
        "60 memories, cut to budget, counts excluded, median ms",
    ]


def test_the_95th_percentile_is_a_sample():
    timing = RenderTiming("x", tuple(float(i) for i in range(1, 101)), 1, 0)
    assert (timing.median_ms, timing.p95_ms) == (50.5, 95.0)
