"""Drive profiles: published figures bound a drive's times from below, so they rule out and never promise."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_plan import DRIVE, MS, US, about, decode, make_demand

from pagegram_io.cli import run
from pagegram_io.drive import read_drive
from pagegram_io.drive_profiles import PROFILES, Profile, profiles_of
from pagegram_io.plan import GO, NO_GO, NOT_KNOWN, Goal, judge, records_of
from pagegram_io.plan_assumptions import Circumstances, assumptions


def test_every_profile_has_a_source_and_a_figure() -> None:
    for name, profile in PROFILES.items():
        assert profile.name == name and re.fullmatch(r"[a-z0-9.-]+", name)
        assert re.search(r"\b20[0-9]{2}\b|www\.", profile.source) and "\n" not in profile.source
        assert f"{profile.published_iops:,}" in profile.figures and profile.at_least_ns(1, 64)[1] > 0


def test_a_drive_that_beats_its_maker_by_some_percent_is_not_ruled_out() -> None:
    """As the Optane P4800X did: 584,800 reads/s, where 550,000 are promised."""
    profile = Profile("p", "its maker", 550_000)
    step_ns = int(1000 * 1e9 / 584_800)
    assert judge(make_demand((None, 1000, 1000)), profile, Goal({None: step_ns}), 64).verdict == NOT_KNOWN
    assert profile.most_iops == 687_500


def consistent_drive(latency_ns: int, slow_ns: int, ways: int, reads: list[int]) -> list[dict[str, Any]]:
    """Decode records of a drive that serves ``ways`` reads at a time, each in latency_ns, one of a step in slow_ns.

    Reads alone take latency_ns at p50 and slow_ns at p99; its highest rate is ways / latency_ns.
    """
    return [
        decode(
            reads_per_step=float(n),
            reads=n * 200,
            step_p50_ns=math.ceil(n / ways) * latency_ns,
            step_p99_ns=(math.ceil(n / ways) - 1) * latency_ns + slow_ns,
        )
        for n in reads
    ]


@given(
    st.integers(1, 10**6),
    st.integers(0, 10**6),
    st.integers(1, 300),
    st.lists(st.integers(1, 2000), min_size=1, max_size=6, unique=True),
    st.floats(0.8, 2),
)
def test_a_bound_is_never_above_what_a_drive_of_those_figures_measures(
    latency: int, more: int, ways: int, reads: list[int], promised_share: float
) -> None:
    drive = read_drive(consistent_drive(latency, latency + more, ways, reads), 4096)
    profile = Profile("x", "its maker", math.ceil(ways * 1e9 / latency * promised_share))
    for n in reads:
        measured, bound = drive.step_ns(n, 64), profile.at_least_ns(n, 64)
        assert measured is not None
        assert bound[0] <= measured[0] and bound[1] <= measured[1]
        for deadline in {1, *measured, *bound, bound[1] + 1} - {0}:
            promised = judge(make_demand((None, n, n)), profile, Goal({None: deadline}), 64)
            found = judge(make_demand((None, n, n)), drive, Goal({None: deadline}), 64)
            assert promised.verdict != GO
            assert promised.verdict == NOT_KNOWN or found.verdict == NO_GO  # what they rule out, the drive misses


@given(st.integers(0, 3000), st.integers(0, 3000), st.sampled_from(sorted(PROFILES)))
def test_more_reads_take_no_less(a: int, b: int, name: str) -> None:
    few, many = sorted((a, b))
    profile = PROFILES[name]
    assert profile.step_ns(many, 64) is None
    assert all(x <= y for x, y in zip(profile.at_least_ns(few, 64), profile.at_least_ns(many, 64), strict=True))
    p50, p99 = profile.at_least_ns(many, 64)
    assert p50 <= p99


def test_verdicts_of_published_figures() -> None:
    profile = Profile("p", "its maker", 800_000)  # a million, with the margin
    late = judge(make_demand((None, 60, 70)), profile, Goal({None: 70 * US - 1}), 64)
    assert late.verdict == NO_GO and "no sooner than 70 us (p99, by published figures of p)" in late.reason
    open_ = judge(make_demand((None, 60, 70)), profile, Goal({None: 70 * US}), 64)
    assert open_.verdict == NOT_KNOWN and open_.not_ruled_out
    assert "nvme --uniform --decode --batch 70 --depth 64 --json DEVICE" in open_.reason
    rate = judge(make_demand((None, 200, 400), batch=4), profile, Goal({}, None, 10_001), 64)
    assert rate.verdict == NO_GO and "at most 10,000 tokens/s" in rate.reason
    assert judge(make_demand((None, 200, 400), batch=4), profile, Goal({}, None, 10_000), 64).not_ruled_out
    none = judge(make_demand((None, 0, 0)), profile, Goal({None: MS}), 64)
    assert none.verdict == NOT_KNOWN and none.last.p99_ns is None  # not even without reads at p99
    unknown = judge(make_demand((None, 2, 4), steps=1), profile, Goal({None: MS}), 64)
    assert unknown.verdict == NOT_KNOWN and not unknown.not_ruled_out and "full steps" in unknown.reason
    record = records_of(late, about())[0]
    assert (record.arrival_p50_ns, record.arrival_p99_ns, record.tokens_per_second_p99) == (None, None, None)
    assert (record.arrival_p50_least_ns, record.arrival_p99_least_ns) == (60 * US, 70 * US)
    assert record.tokens_per_second_p99_most == pytest.approx(1e9 / (70 * US))


def test_layers_of_published_figures_have_verdicts_of_their_own() -> None:
    profile = Profile("p", "its maker", 800_000)
    found = judge(make_demand((1, 8, 10), (14, 30, 64)), profile, Goal({1: 10 * US, 14: 63 * US}), 64)
    assert [(r.layer, r.verdict) for r in records_of(found, about())] == [(None, NO_GO), (1, NOT_KNOWN), (14, NO_GO)]


def test_assumptions_name_the_source() -> None:
    profile = PROFILES["samsung-pm1743"]
    text = " ".join(assumptions(Goal({None: 1}), profile, Circumstances("page", 64, 1, "rows aligned")))
    assert (
        profile.source in text
        and "2,500,000" in text
        and "3,125,000" in text
        and "no verdict is go" in text
        and "in flight" not in text
    )


def test_profiles_by_name() -> None:
    names = ["samsung-pm1743", "micron-9400"]
    assert [profile.name for profile in profiles_of([*names, names[0]], 8192)] == names
    with pytest.raises(ValueError, match="no drive profile is named 'pm1743'; there are .*micron-9400"):
        profiles_of(["pm1743"], 4096)
    with pytest.raises(ValueError, match="bound none of 512"):
        profiles_of(names, 512)
    assert profiles_of([], 512) == []


# ---- the command ---------------------------------------------------------------------------------

QUICK = ["plan", "--table", "2M", "--limit", "60K", "--cache", "none", "--batch", "8"]


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run([*QUICK, *words, "--json"]) == 0, capsys.readouterr()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_plan_with_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (record,) = planned(capsys, "--profile", "micron-9550-max", "--deadline", "3us")
    assert (record["verdict"], record["profile"], record["device"]) == (NO_GO, "micron-9550-max", "micron-9550-max")
    assert record["profile_source"] == PROFILES["micron-9550-max"].source
    assert (record["target"], record["engine"], record["depth"], record["largest_step_measured"]) == (None,) * 4
    assert (record["published_iops"], record["arrival_p99_least_ns"]) == (3_300_000, 16 * 10**9 // 4_125_000)
    assert record["prefill_tokens_per_second"] is None
    assert record["prefill_tokens_per_second_most"] == pytest.approx(4_125_000 / record["prefill_reads_per_token"])
    assert planned(capsys, "--profile", "micron-9550-max", "--deadline", "4us")[0]["verdict"] == NOT_KNOWN
    rows = [decode(reads_per_step=16.0, step_p50_ns=10 * US, step_p99_ns=90 * US)]
    Path("drive.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    both = ["--device", "drive.jsonl", "--profile", "samsung-pm1743", "--deadline"]
    (record,) = planned(capsys, *both, "80us")
    assert (record["verdict"], record["profile"], record["target"]) == (NO_GO, None, "/dev/x")
    assert record["change"].startswith("perhaps the drive samsung-pm1743: published figures of samsung-pm1743 allow it")
    assert planned(capsys, *both, "90us")[0]["verdict"] == GO
    assert run([*QUICK, "--profile", "micron-9550-max", "--deadline", "3us"]) == 0
    out = capsys.readouterr().out
    assert ">= 3.88" in out and "<= " in out and "published figures alone" in out and "storagereview" in out
    assert run([*QUICK, "--profile", "samsung-pm1743", "--goal", "5", "--cache", "64KiB", "--plot", "p.png"]) == 0
    assert "nothing to draw" in capsys.readouterr().err and not Path("p.png").exists()


def test_profiles_that_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    for words, word in (
        (["--profile", "pm9999"], "no drive profile is named 'pm9999'"),
        (["--profile", "samsung-pm1743", "--page-size", "512"], "of 512"),
    ):
        assert run([*QUICK, "--goal", "5", *words]) == 2
        err = capsys.readouterr().err
        assert word in err and len(err.splitlines()) == 1
    assert run(["plan", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name} " in out and profile.figures in out for name, profile in PROFILES.items())


def test_a_drive_that_was_measured_is_none_that_was_published() -> None:
    assert not DRIVE.published and all(profile.published for profile in PROFILES.values())
