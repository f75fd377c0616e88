"""Figure 1 is drawn from records alone, and refuses those that cannot stand in one figure (C31)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_figures import drawn  # noqa: F401
from test_figures import simulation as simulate_record
from training_records import ARMS, all_arms, train_record

from pagegram_io.cli import run
from pagegram_io.figure1 import draw_figure1, read_gaps, read_loss_curve
from pagegram_io.loss_panels import Gap, number_of
from pagegram_io.paired import read_arms
from pagegram_io.record_files import read_records, to_dict, write_json_lines

MILLIONS = 4_000_000


def simulations() -> list[Any]:
    layouts = [("flat", None), ("engram", None), ("pagegram", 4), ("pagegram", 15)]
    return [simulate_record(layout, 20_000_000_000, pages) for layout in layouts for pages in (0, 10**5, 10**6)]


CASES: dict[str, list[Any]] = {
    "all": [*all_arms(0, 1, 2), *simulations()],
    "no simulations": all_arms(0, 1, 2),
    "one seed": all_arms(5),
    "no flat": [record for record in all_arms(0, 1) if record.memory != "flat"],
    "one run": [train_record("pagegram", 4, 0)],
    "a layout of one's own": [*all_arms(0, 1), *(train_record("mine $x$", None, seed) for seed in (0, 1))],
    "a memory that hurts": [*all_arms(0, 1), *(train_record("engram", None, seed, loss=9.0) for seed in (2, 3))],
}


@pytest.mark.parametrize("name", CASES)
def test_labels_do_not_overlap_and_stay_on_the_page(tmp_path: Path, drawn: list[Any], name: str):  # noqa: F811
    from matplotlib.text import Text

    draw_figure1(CASES[name], tmp_path / "figure.png", title="Title")
    (figure,) = drawn
    page = figure.bbox.padded(1)
    boxes = []
    for text in figure.findobj(lambda item: isinstance(item, Text) and item.get_visible() and item.get_text() != ""):
        box = Text.get_window_extent(text)  # of an annotation without its line, which crosses curves by intent
        on_page = [page.x0 <= box.x0, page.y0 <= box.y0, box.x1 <= page.x1, box.y1 <= page.y1]
        assert all(on_page), text.get_text()
        if box.width and box.height:  # an arrow's text is empty
            boxes.append((box, text.get_text()))
    for index, (box, text) in enumerate(boxes):
        for other, other_text in boxes[:index]:
            assert not box.overlaps(other), (text, other_text)


def test_equal_records_give_equal_bytes_and_files_are_kept(tmp_path: Path):
    for suffix in (".png", ".svg", ".pdf"):
        paths = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
        draw_figure1(CASES["all"], paths[0])
        draw_figure1([to_dict(record) for record in CASES["all"]], paths[1])
        assert paths[0].read_bytes() == paths[1].read_bytes()
        with pytest.raises(FileExistsError):
            draw_figure1(CASES["all"], paths[0])


def test_curves_are_means_over_seeds_and_bands_their_range():
    arm = read_arms([train_record("flat", None, seed) for seed in (0, 1, 2)])[0]
    curve = read_loss_curve(arm)
    points = [list(losses) for losses in zip(*(run["validation_losses"] for run in arm.runs.values()), strict=True)]
    assert curve.mean == pytest.approx([sum(losses) / 3 for losses in points])
    assert (list(curve.low), list(curve.high)) == (list(map(min, points)), list(map(max, points)))
    assert list(curve.tokens) == train_record("flat", None, 0).tokens_seen


def test_gaps_are_differences_to_flat_of_the_same_seed_with_no_memory_last():
    gaps = read_gaps(read_arms(all_arms(0, 1, 2)))
    assert [gap.key[0] for gap in gaps] == ["engram", "pagegram", "pagegram", "pagegram", "none"]
    for seed in range(3):
        engram, flat = train_record("engram", None, seed), train_record("flat", None, seed)
        assert gaps[0].values[seed] == pytest.approx(engram.loss - flat.loss, abs=1e-12)
    assert number_of(Gap(("engram", None, None), (), -0.01234, 0.5)) == "\N{MINUS SIGN}0.0123 ± 0.5000"
    assert number_of(Gap(("engram", None, None), (), 0.01234, None)) == "+0.0123"


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([], "no records of training runs"),
        (simulations(), "no records of training runs"),
        ([*all_arms(0), {"kind": "nvme", "depth": 1}], "kind 'nvme' is no training run"),
        ([*all_arms(0), train_record("flat", None, 1, tokens=7)], "runs with tokens"),
        ([*CASES["all"], simulate_record(("flat", None), 20_000_000_000, 7, tokens=3)], "records with tokens"),
        ([train_record("flat", None, 0), train_record("flat", None, 1, tokens_seen=[1])], "other numbers of tokens"),
        ([train_record("flat", None, 0, tokens_seen=[], validation_losses=[])], "no validation"),
    ],
)
def test_what_cannot_stand_in_one_figure_is_refused(tmp_path: Path, records: list[Any], told: str):
    with pytest.raises(ValueError, match=told):
        draw_figure1(records, tmp_path / "figure.png")
    assert not list(tmp_path.iterdir())


def test_the_command_draws_again_from_the_records_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with (tmp_path / "mine.jsonl").open("w") as file:
        write_json_lines(CASES["all"], file)
    output = tmp_path / "out"
    assert run(["figure1", "-o", str(output), "--records", str(tmp_path / "mine.jsonl"), "--formats", "png,svg"]) == 0
    assert sorted(path.name for path in output.iterdir()) == ["figure1.png", "figure1.svg"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1 : 1 + len(ARMS)]] == [arm.label for arm in read_arms(all_arms(0))]
    draw_figure1(CASES["all"], tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (output / "figure1.svg").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--runs", "x"], "--runs goes with --train"),
        (["--seeds", "1,2"], "--seeds goes with --train"),
        (["--train", "--records", "x"], "give one of them"),
        (["--train", "--seeds", "1,1"], "names a seed twice"),
    ],
)
def test_mistakes_get_one_line_and_leave_nothing(tmp_path, monkeypatch, capsys, arguments, told):
    monkeypatch.chdir(tmp_path)
    assert run(["figure1", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert told in line
    assert not list(tmp_path.iterdir())


def test_train_makes_what_is_missing_and_then_nothing(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    from test_runs import TINY

    from pagegram_io.models import presets

    monkeypatch.setattr(presets, "MINI", TINY)
    options = ["figure1", "-o", str(tmp_path / "out"), "--train", "--seeds", "3", "--jobs", "2", "--formats", "png"]
    assert run(options) == 0
    assert "6 of 6 runs are missing: about " in capsys.readouterr().err
    records = read_records(tmp_path / "out" / "figure1.jsonl")
    assert [(r["memory"], r["slots"]) for r in records if r["kind"] == "train"] == list(ARMS)
    assert {(r["layout"], r["slots"]) for r in records if r["kind"] == "simulate"} == set(ARMS) - {("none", None)}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*")}
    assert run([*options, "--force"]) == 0
    assert "missing" not in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*")}
    assert [json.dumps(r) for r in read_records(tmp_path / "out" / "figure1.jsonl") if r["kind"] == "train"] == [
        json.dumps(r) for r in records if r["kind"] == "train"
    ]
