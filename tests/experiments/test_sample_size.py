import math

import pytest

from salience_experiments.sample_size import least_detectable_effect, required_n, simulated_power


def test_formula_matches_connors_mcnemar_size():
    # (1.959964·√0.2 + 0.841621·√(0.2 − 0.1²))² / 0.1² = 154.2
    assert required_n(0.10, discordance=0.20).n_formula == 155


def test_formula_matches_the_textbook_paired_mean_size():
    # (1.959964 + 0.841621)² · (0.5 / 0.1)² = 196.2
    assert required_n(0.10, sd=0.5).n_formula == 197


def test_simulation_raises_n_until_the_exact_test_has_the_power():
    size = required_n(0.10, discordance=0.20)
    assert size.n > size.n_formula
    assert size.power == pytest.approx(0.80, abs=0.03)
    assert simulated_power(size.n, 0.10, discordance=0.20, seed=9) == pytest.approx(0.80, abs=0.03)


def test_without_an_effect_the_power_is_at_most_alpha():
    assert simulated_power(200, 0.0, discordance=0.2) <= 0.055
    assert simulated_power(200, 0.0, sd=1.0) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize("spread", [{"discordance": 0.25}, {"sd": 0.7}])
def test_least_detectable_effect_inverts_the_required_n(spread):
    effect = least_detectable_effect(500, **spread)
    assert required_n(effect, **spread).n_formula == pytest.approx(500, abs=1)


def test_no_n_is_below_what_the_exact_test_can_show():
    assert required_n(0.5, sd=0.1, alpha=0.05 / 21).n == 10
    assert required_n(0.9, discordance=0.95, alpha=0.05 / 21).n >= 10


def test_too_few_pairs_can_show_nothing():
    assert math.isinf(least_detectable_effect(10, discordance=0.1))
    assert math.isinf(least_detectable_effect(1, sd=1.0))


def test_more_power_and_stricter_alpha_need_more():
    plain = required_n(0.05, sd=0.4).n
    assert required_n(0.05, sd=0.4, power=0.9).n > plain
    assert required_n(0.05, sd=0.4, alpha=0.01).n > plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"effect": 0.0, "sd": 1.0}, "effect must not be zero"),
        ({"effect": 0.3, "discordance": 0.2}, "effect must be at most the discordance"),
        ({"effect": 0.1}, "exactly one of discordance and sd"),
        ({"effect": 0.1, "sd": 1.0, "discordance": 0.2}, "exactly one of discordance and sd"),
        ({"effect": 0.1, "sd": math.nan}, "sd must be finite"),
        ({"effect": 0.1, "sd": 1.0, "alpha": 0.0}, "alpha and power must be in"),
    ],
)
def test_impossible_questions_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        required_n(**arguments)
