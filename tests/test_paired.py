"""Differences between runs of one seed, their interval, and which runs cannot be compared."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_records import ARMS, all_arms, train_record

from pagegram_io.paired import T_975, difference, interval, read_arms


def density(x: float, freedom: int) -> float:
    """Student's t, by its definition."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    return scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)


@pytest.mark.parametrize("freedom", range(1, len(T_975) + 1))
def test_quantiles_leave_a_fortieth_above_them(freedom):
    steps, high = 4000, T_975[freedom - 1]
    width = high / steps
    inside = sum(density((i + 0.5) * width, freedom) for i in range(steps)) * width
    assert 0.5 + inside == pytest.approx(0.975, abs=4e-6)


@settings(max_examples=60)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=40))
def test_interval_is_that_of_the_textbook(values):
    mean, half_width = interval(values)
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-12)
    quantile = T_975[min(len(values) - 2, len(T_975) - 1)]
    assert half_width == pytest.approx(quantile * statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


def test_a_single_value_has_no_interval():
    assert interval([0.25]) == (0.25, None)


def test_arms_come_in_the_order_of_the_tables_with_their_runs_by_seed():
    arms = read_arms(reversed(all_arms(2, 0, 1)))
    assert [arm.key for arm in arms] == list(ARMS)
    assert all(list(arm.runs) == [0, 1, 2] for arm in arms)
    assert [arm.label for arm in arms][-1] == "pagegram S=15"


def test_a_difference_pairs_the_seeds_that_both_have():
    arms = {arm.key: arm for arm in read_arms([*all_arms(0, 1, 2), train_record("engram", None, 7)])}
    found = difference(arms["engram", None], arms["flat", None])
    losses = {
        seed: train_record("engram", None, seed).loss - train_record("flat", None, seed).loss for seed in range(3)
    }
    assert found.by_seed == losses
    assert (found.mean, found.half_width) == interval(list(losses.values()))
    assert difference(arms["engram", None], read_arms([train_record("flat", None, 9)])[0]) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("tokens", 5), ("stream_sha256", "00" * 32), ("validation_windows", 3), ("lr", 0.1), ("device", "cuda"),
     ("preset", "base"), ("table_params", 7), ("bias_correction", "row"), ("gate", "context")],
)  # fmt: skip
def test_runs_that_cannot_be_compared_are_refused(name, value):
    records = [*all_arms(0), train_record("engram", None, 1, **{name: value})]
    with pytest.raises(ValueError, match=f"runs with {name} .* cannot be compared"):
        read_arms(records)


def test_two_records_of_a_run_agree_or_are_refused():
    run = train_record("flat", None, 0)
    assert len(read_arms([run, dataclasses.replace(run, seconds=9.0)])[0].runs) == 1
    with pytest.raises(ValueError, match="two runs of flat with seed 0 have losses"):
        read_arms([run, dataclasses.replace(run, loss=1.0)])


def test_other_kinds_and_nothing_are_refused():
    with pytest.raises(ValueError, match="no records of training runs"):
        read_arms([])
    with pytest.raises(ValueError, match="kind 'nvme' is no training run"):
        read_arms([{"kind": "nvme"}])
