"""Figures: drawn from records alone (C31), equal records give equal bytes, and what cannot be compared is refused."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagegram_io import figures, panels, styles
from pagegram_io.figures import DEVICE_COMMANDS, draw_curves, draw_figure4
from pagegram_io.record_files import read_records, to_dict, write_csv, write_json_lines
from pagegram_io.records import SimulationRecord

PAGE_BYTES = 4096
TOKENS = 1_000_000
GIB = 1 << 30
# (layout, slots): reads of an uncached lookup, pages a parameter of a 20B table
LAYOUTS = {("flat", None): (2, 2_480_160), ("engram", None): (16, 2_604_154), ("pagegram", 4): (2, 3_255_201),
           ("pagegram", 15): (2, 2_604_140)}  # fmt: skip


def simulation(layout: tuple[str, int | None], params: int, cache_pages: int, **changes: Any) -> SimulationRecord:
    """A record of a plausible shape: reads fall from all accesses to the first accesses as the cache grows."""
    reads, pages = LAYOUTS[layout][0], LAYOUTS[layout][1] * params // 20_000_000_000
    share = min(cache_pages / pages, 1.0)
    accesses, compulsory = reads * TOKENS, min(pages // 20, TOKENS // 10)
    misses = max(int(accesses * (1 - share**0.3)), compulsory)
    fields: dict[str, Any] = {
        "version": "0.1.0", "layout": layout[0], "slots": layout[1], "table_params": params,
        "table_params_actual": params - 384, "row_format": "nf4", "row_bytes": 34, "page_bytes": PAGE_BYTES,
        "pages": pages, "file_bytes": pages * PAGE_BYTES, "placement": "aligned", "policy": "lru",
        "cache_unit": "page", "cache_bytes": cache_pages * PAGE_BYTES, "cache_pages": cache_pages,
        "stream": "/data/shipped $1 & $2.u16", "stream_sha256": "5e" * 32, "tokens": TOKENS, "documents": 100,
        "warm_tokens": 0, "state": "cold", "accesses": accesses, "misses": misses, "misses_second_half": misses // 2,
        "compulsory_misses": compulsory, "reads_per_token": misses / TOKENS,
        "reads_per_token_second_half": misses / TOKENS,
        "reads_per_token_without_compulsory": (misses - compulsory) / TOKENS, "hit_rate": 1 - misses / accesses,
        "bytes_read_per_token": 1.0, "bytes_used_per_token": 1.0, "read_amplification": 1.0,
        "compulsory_share": compulsory / misses, "cache_full_at_token": None, "memory_bytes": 0, "seed": 0,
        "heads": 8, "row_width": 64, "dim": 384, "orders": "2,3", "isa": "avx2", "threads": 1, "seconds": 0.1,
        "kernel": "6.1.0", "cpu": "cpu", "time": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    return SimulationRecord(**{**fields, **changes})


def curve_records(*sizes: int, pages_a_step: int = 4) -> list[SimulationRecord]:
    grid = [0] + sorted({int(10 ** (step / pages_a_step)) for step in range(7 * pages_a_step)})
    return [simulation(layout, size, pages) for size in sizes for layout in LAYOUTS for pages in grid]


def cache_records(*caches: int, sizes: tuple[int, ...] = (20_000_000_000,)) -> list[SimulationRecord]:
    return [simulation(layout, size, cache // PAGE_BYTES) for size in sizes for layout in LAYOUTS for cache in caches]


SIZES = (3_200_000_000, 10_000_000_000, 20_000_000_000)
CASES = {
    "twelve curves": curve_records(*SIZES),
    "one size": curve_records(SIZES[-1]),
    "three caches": cache_records(256 << 20, GIB, 4 * GIB, sizes=SIZES),
    "one cache": cache_records(GIB),
    "one cache, three sizes": cache_records(GIB, sizes=SIZES),
    "no cache": cache_records(0),
    "none and one": cache_records(0, GIB),
    "tiny": [simulation(("flat", None), 200_000_000, pages) for pages in (1, 2, 3)],
}


def device(layout: str, slots: int | None, depth: int, rate: float, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "nvme", "target": "/dev/nvme0n1", "engine": "io_uring", "direct": True, "mode": "throughput", "jobs": 1,
        "cache_bytes": GIB, "layout": layout, "slots": slots, "table_params": 20_000_000_000, "depth": depth,
        "lookups_per_second": rate, "limited_by": "device", "iops_by_second": [1, 2], **changes,
    }  # fmt: skip


DEVICE = [
    device(layout, slots, depth, 9000.0 * depth / LAYOUTS[layout, slots][0] * (1 + repeat / 50))
    for layout, slots in LAYOUTS
    for depth in (1, 2, 4, 8, 256)
    for repeat in range(2)
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved, still open to questions."""
    kept: list[Any] = []
    save = styles.save_figure

    def save_and_keep(figure: Any, path: Path, *, force: bool) -> None:
        save(figure, path, force=force)
        kept.append(figure)

    monkeypatch.setattr(styles, "save_figure", save_and_keep)
    return kept


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_figures_regenerate_byte_for_byte_from_records_alone(tmp_path: Path, suffix: str) -> None:
    records = curve_records(*SIZES, pages_a_step=2)
    lines, table = tmp_path / "records.jsonl", tmp_path / "records.csv"
    with open(lines, "w", encoding="utf-8") as stream:
        write_json_lines(records, stream)
    write_csv(records, table)

    def draw(given_records: list[Any]) -> bytes:
        path = tmp_path / f"figure{suffix}"
        draw_figure4(given_records, path, device_records=DEVICE, force=True)
        return path.read_bytes()

    first = draw(records)
    assert first.startswith({".svg": b"<?xml", ".pdf": b"%PDF"}.get(suffix, b"\x89PNG"))
    assert draw(read_records(lines)) == first
    assert draw(read_records(table)) == first
    if suffix == ".svg":
        assert draw(random.Random(1).sample(records, len(records))) == first
        assert draw(records[1:]) != first


def test_another_process_and_style_draw_the_same_bytes(tmp_path: Path) -> None:
    """Nor is pyplot imported, nor the caller's style used or changed."""
    script = (
        "import sys, matplotlib as m; from pathlib import Path; from pagegram_io.figures import draw_curves; "
        "from pagegram_io.record_files import read_records; "
        "m.rcParams['lines.linewidth'] = 9; m.rcParams['font.size'] = 20;"
        "read = lambda: {key: m.rcParams[key] for key in m.rcParams if key != 'backend'}; before = read(); "
        "[draw_curves(read_records(sys.argv[1]), sys.argv[2] + s) for s in ('.svg', '.pdf', '.png')]; "
        "assert read() == before; assert 'matplotlib.pyplot' not in sys.modules"
    )
    records = tmp_path / "records.csv"
    write_csv(CASES["three caches"], records)
    for seed in ("1", "2"):
        subprocess.run(
            [sys.executable, "-c", script, str(records), str(tmp_path / seed)],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(figures.__file__).parents[1])},
        )
    for suffix in (".svg", ".pdf", ".png"):
        draw_curves(CASES["three caches"], tmp_path / ("here" + suffix))
        here = (tmp_path / ("here" + suffix)).read_bytes()
        assert here == (tmp_path / ("1" + suffix)).read_bytes() == (tmp_path / ("2" + suffix)).read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_labels_do_not_overlap_and_stay_on_the_page(tmp_path: Path, drawn: list[Any], name: str) -> None:
    check_labels(tmp_path, drawn, CASES[name], DEVICE)


def check_labels(tmp_path: Path, drawn: list[Any], records: list[Any], device_records: list[Any]) -> None:
    from matplotlib.text import Text

    draw_figure4(records, tmp_path / "figure.png", device_records=device_records, title="Title")
    (figure,) = drawn
    assert figure.get_figwidth() == 7.0
    page = figure.bbox.padded(1)
    boxes = []
    for text in figure.findobj(lambda item: isinstance(item, Text) and item.get_visible() and item.get_text() != ""):
        assert text.get_fontsize() >= 8
        box = Text.get_window_extent(text)  # of an annotation without its line, which crosses curves by intent
        on_page = [page.x0 <= box.x0, page.y0 <= box.y0, box.x1 <= page.x1, box.y1 <= page.y1]
        assert all(on_page), text.get_text()
        boxes.append((box, text.get_text()))
    for index, (box, text) in enumerate(boxes):
        for other, other_text in boxes[:index]:
            assert not box.overlaps(other), (text, other_text)


def test_svg_and_captions_say_what_was_drawn(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    draw_figure4(CASES["twelve curves"], path, title="Figure 4")
    text = path.read_text(encoding="utf-8")
    for words in ("PageGram S=15, 20B", "Engram-style, 20B", "none", "16 GiB", "1,000,000 tokens", "cold", "NF4 rows",
                  "seed 0", "Not measured", "Figure 4", "shipped $1 &amp; $2.u16"):  # fmt: skip
        assert words in text, words
    assert "/data" not in text
    for command in DEVICE_COMMANDS:
        assert command.replace(">", "&gt;") in text
    draw_figure4(CASES["one cache"], path, device_records=DEVICE, force=True)
    text = path.read_text(encoding="utf-8")
    assert "Not measured" not in text
    assert "/dev/nvme0n1" in text and "O_DIRECT" in text and "medians of repeats" in text


def test_what_weakens_a_result_is_written_on_it(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"
    buffered = [{**row, "direct": False, "limited_by": "cpu"} for row in DEVICE]
    warm_rows = cache_records(GIB)
    records = [{**to_dict(row), "state": "warm", "warm_tokens": 5000, "cache_unit": "row"} for row in warm_rows]
    draw_figure4(records, path, device_records=buffered)
    text = path.read_text(encoding="utf-8")
    for words in ("page cache, not the device", "limited by the CPU", "warmed by 5,000 tokens", "row cache size"):
        assert words in text, words
    draw_curves([{**row, "compulsory_share": 0.5} for row in records], path, force=True)
    assert "Faint: more than 20% of" in path.read_text(encoding="utf-8")


def test_caches_larger_than_the_table_are_clipped_to_it() -> None:
    (flat,) = figures.read_curves([simulation(("flat", None), SIZES[0], pages) for pages in (10, 10**7, 10**8, 0)])[1]
    pages = LAYOUTS["flat", None][1] * SIZES[0] // SIZES[-1]
    assert flat.x == (10 * PAGE_BYTES, pages * PAGE_BYTES)
    assert flat.uncached == 2.0


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("stream_sha256", "77" * 32), ("tokens", 5), ("documents", 5), ("state", "warm"), ("warm_tokens", 5),
        ("seed", 5), ("page_bytes", 8192), ("row_format", "fp16"), ("placement", "packed"), ("policy", "fifo"),
        ("cache_unit", "row"),
    ],
)  # fmt: skip
def test_mixes_are_refused_by_field_and_values(tmp_path: Path, field: str, other: Any) -> None:
    first, second = simulation(("flat", None), SIZES[0], 100), simulation(("engram", None), SIZES[0], 100)
    mixed = [to_dict(first), {**to_dict(second), field: other}]
    for draw in (draw_curves, draw_figure4):
        with pytest.raises(ValueError) as caught:
            draw(mixed, tmp_path / "figure.png")
        for words in (field, repr(getattr(first, field)), repr(other)):
            assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_one_curve_of_two_tables_is_refused(tmp_path: Path) -> None:
    first = simulation(("flat", None), SIZES[0], 100)
    for change in ({"dim": 512, "cache_pages": 200}, {"orders": "2,3,4"}, {"misses": 1}):
        with pytest.raises(ValueError, match=next(iter(change))):
            draw_curves([first, {**to_dict(first), **change}], tmp_path / "figure.png")


def test_a_page_array_of_ones_own_is_drawn_beside_ours(tmp_path: Path) -> None:
    unstated = {"layout": "my layout", "seed": None, "row_format": None, "placement": None, "table_params": None}
    own = {**to_dict(simulation(("flat", None), SIZES[0], 100)), **unstated}
    draw_curves([own, simulation(("engram", None), SIZES[0], 100)], tmp_path / "figure.svg")
    assert "my layout" in (tmp_path / "figure.svg").read_text(encoding="utf-8")
    draw_curves([own], tmp_path / "alone.SVG", marked_bytes=[100 * PAGE_BYTES])


def test_odd_names_are_drawn_without_a_warning_and_leave_valid_files(tmp_path: Path) -> None:
    odd = {"layout": "表\x00\udcff$x^2", "stream": "/流れ\x1b[31m <&>.u16"}
    record = {**to_dict(simulation(("flat", None), SIZES[0], 100)), **odd}
    for suffix in (".svg", ".png", ".pdf"):
        draw_figure4([record], tmp_path / f"figure{suffix}", title="50 % & $a_b$ <tag>")
    ElementTree.parse(tmp_path / "figure.svg")


@pytest.mark.parametrize(
    ("records", "device_records", "words"),
    [
        ([], [], "no records"),
        (DEVICE, [], "'nvme'"),
        (CASES["one cache"], CASES["one cache"], "'simulate'"),
        ([simulation(("flat", None), SIZES[0], 1, order=2)], [], "of an order, column"),
        ([simulation(("flat", None), SIZES[0], 1, layer=1)], [], "layer or rank"),
        ([simulation(("flat", None), SIZES[0], 1, schema=2)], [], "schema"),
        (CASES["one cache"], [*DEVICE, device("flat", None, 4, 1.0, direct=False)], "direct True and False"),
        (CASES["one cache"], [*DEVICE, device("flat", None, 4, 1.0, target="other")], "target"),
        (CASES["one cache"], [device("flat", None, 4, 1.0, mode="decode")], "'decode'"),
        (CASES["one cache"], [device("uniform", None, 4, 1.0)], "uniform"),
        (CASES["one cache"], [device("flat", None, 4, 0.0)], "lookups_per_second"),
        (CASES["one cache"], [device("flat", None, 0, 1.0)], "depth"),
    ],
)
def test_what_has_no_place_in_a_figure_is_refused(
    tmp_path: Path, records: list[Any], device_records: list[Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        draw_figure4(records, tmp_path / "figure.png", device_records=device_records)
    if not device_records:
        with pytest.raises(ValueError, match=words):
            draw_curves(records, tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_device_records_without_a_lookup_are_left_out(tmp_path: Path) -> None:
    draw_figure4(CASES["one cache"], tmp_path / "with.svg", device_records=DEVICE)
    failed = [device("flat", None, 1, 0.0), device("flat", None, 2, 1.0, tokens=0)]
    draw_figure4(CASES["one cache"], tmp_path / "without.svg", device_records=[*failed, *DEVICE])
    assert (tmp_path / "with.svg").read_bytes() == (tmp_path / "without.svg").read_bytes()


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.svgz", ".png"])
def test_other_suffixes_are_refused_with_the_list(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"\.png, \.svg, \.pdf"):
        draw_curves(CASES["one cache"], tmp_path / name)


def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        draw_curves(CASES["one cache"], path)
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]
    draw_curves(CASES["one cache"], str(path), force=True)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="need matplotlib"):
        draw_curves(CASES["one cache"], tmp_path / "figure.png")


@given(wanted=st.lists(st.floats(0, 100), max_size=8).map(sorted))
def test_spread_keeps_order_and_gap(wanted: list[float]) -> None:
    places = panels.spread(wanted, gap=12, low=0, high=100)
    assert len(places) == len(wanted)
    assert all(right - left >= 12 - 1e-9 for left, right in zip(places, places[1:], strict=False))
    assert all(-1e-9 <= place <= 100 + 1e-9 for place in places)
    if all(right - left >= 12 for left, right in zip(wanted, wanted[1:], strict=False)):
        assert places == pytest.approx(wanted)


# ---- deployed tables -------------------------------------------------------------------------------


def of_model(name: str, params: int, cache_pages: int, **changes: Any) -> SimulationRecord:
    """A record of a deployed table; pages and reads of no table there is."""
    told = {
        "layout": name, "model": name, "placement": "packed", "row_format": "fp8", "scales": "resident",
        "resident_bytes": 6 * 10**9, "assumed": "each tensor on a page boundary; scales resident",
    }  # fmt: skip
    return dataclasses.replace(simulation(("engram", None), params, cache_pages), **{**told, **changes})


def model_curve(name: str, params: int, **changes: Any) -> list[SimulationRecord]:
    return [of_model(name, params, pages, **changes) for pages in (0, *(4**step for step in range(2, 13)))]


DEPLOYED = {
    "one": model_curve("deepseek-v4.1-flash", 196_600_000_000),
    "two": model_curve("deepseek-v4.1-flash", 196_600_000_000)
    + model_curve("longcat-flash-lite-no-stop", 31_400_000_000, row_format="bf16", resident_bytes=0, scales=None,
                  assumed="each tensor on a page boundary", tokenizer_stand_in="multilingual-20m"),
    "many": [r for i, n in enumerate("abcdef") for r in model_curve(f"a-model-of-a-long-name-{n}", (i + 1) * 10**10)],
}  # fmt: skip


@pytest.mark.parametrize("name", DEPLOYED)
@pytest.mark.parametrize("measured", [False, True])
def test_labels_of_deployed_tables_stay_on_the_page(
    tmp_path: Path, drawn: list[Any], name: str, measured: bool
) -> None:
    models = {r.layout: r.table_params for r in DEPLOYED[name]}
    rows = [device(m, None, depth, 100.0 * depth, table_params=n) for m, n in models.items() for depth in (1, 4, 64)]
    check_labels(tmp_path, drawn, DEPLOYED[name], rows if measured else [])


def test_what_a_deployed_table_takes_for_granted_is_written_on_it(tmp_path: Path) -> None:
    path = tmp_path / "figure.svg"

    def caption(records: list[SimulationRecord]) -> str:
        draw_figure4(records, path, force=True)
        return " ".join(ElementTree.parse(path).getroot().itertext()).replace("\n", " ")

    text = " ".join(caption(DEPLOYED["one"]).split())
    assert "FP8 rows, packed in pages of 4,096 bytes. Assumed, without the checkpoint's headers: each tensor on" in text
    assert "scales resident (5.588 GiB of RAM)." in text
    assert "seed" not in text and "stands in" not in text
    assert "nvme --model deepseek-v4.1-flash --depth 1,2,4,8,16,32,64,128,256" in text
    text = " ".join(caption(DEPLOYED["two"]).split())
    assert "longcat-flash-lite-no-stop: BF16 rows, packed. Assumed, without" in text
    assert "deepseek-v4.1-flash: FP8 rows, packed. Assumed" in text
    assert "multilingual-20m stands in for the model's own ids: an estimate." in text
    assert "figure4 --model deepseek-v4.1-flash,longcat-flash-lite-no-stop" in text
    placed = [to_dict(r) | {"placement": "files", "assumed": None} for r in DEPLOYED["one"]]
    assert "Placed where the checkpoint's headers say (5.588 GiB of RAM)." in " ".join(caption(placed).split())


def test_long_commands_can_be_pasted_line_by_line() -> None:
    for records in DEPLOYED.values():
        rows = [to_dict(r) for r in records]
        lines = figures.device_commands(rows)
        assert all(len(line) <= figures.COMMAND_CHARACTERS for line in lines)
        words = "\n".join(lines).replace("\\\n", "").split("\n")
        one = rows[0]["model"] if len({r["model"] for r in rows}) == 1 else "NAME"
        measure, draw = (" ".join(line.split()) for line in words)
        assert measure == DEVICE_COMMANDS[0].replace(" nvme ", f" nvme --model {one} ")
        assert draw.startswith("pagegram-io figure4 --model ") and draw.endswith(" --device-records device.jsonl")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (model_curve("qwen3.8-flash-next", 51_200_000_000, stream_sha256="77" * 32), "stream_sha256"),
        (model_curve("deepseek-v4.1-flash", 196_600_000_000, scales="read", resident_bytes=0), "scales"),
        (model_curve("deepseek-v4.1-flash", 196_600_000_000, assumed="packed in a file of its own"), "assumed"),
        (model_curve("deepseek-v4.1-flash", 196_600_000_000, row_format="q4_k"), "row_format"),
        (model_curve("deepseek-v4.1-flash", 196_600_000_000, placement="files"), "placement"),
        (model_curve("deepseek-v4.1-flash", 196_600_000_000, tokenizer_stand_in="multilingual-20m"), "stand_in"),
        (curve_records(SIZES[-1]), "row_format"),
        ([simulation(("flat", None), SIZES[-1], 9, row_format="fp8", placement="packed")], "equal parameters only"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_deployed_tables_that_cannot_be_compared_are_refused(tmp_path: Path, other: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw_figure4([*DEPLOYED["one"], *other], tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []


def test_a_deployed_table_stands_beside_ours_of_as_many_parameters(tmp_path: Path) -> None:
    ours = [simulation(("pagegram", 4), 196_600_000_000, n, row_format="fp8", placement="packed") for n in (9, 99)]
    draw_figure4([*DEPLOYED["one"], *ours], tmp_path / "figure.svg")
    assert "seed 0" in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_one_device_curve_of_two_placements_is_refused_and_folded_tables_are_named(tmp_path: Path) -> None:
    rows = [device("deepseek-v4.1-flash", None, depth, 9.0, row_format="fp8", table_pages=90, page_bytes=4096,
                   span_bytes=4096 * 90, wrapped=True) for depth in (1, 4)]  # fmt: skip
    path = tmp_path / "figure.svg"
    draw_figure4(DEPLOYED["one"], path, device_records=rows)
    assert "folded" not in path.read_text(encoding="utf-8")
    folded = [row | {"span_bytes": 4096 * 64} for row in rows]
    draw_figure4(DEPLOYED["one"], path, device_records=folded, force=True)
    assert "folded into the target's 256 KiB" in path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="placed in two ways"):
        draw_figure4(DEPLOYED["one"], path, device_records=[rows[0], rows[1] | {"table_pages": 91}], force=True)
    with pytest.raises(ValueError, match="row_format 'fp8' and 'q4_k'"):
        draw_figure4(DEPLOYED["one"], path, device_records=[rows[0], rows[1] | {"row_format": "q4_k"}], force=True)
    other = device("longcat-flash-lite", None, 4, 9.0, row_format="bf16", table_params=31_400_000_000,
                   page_bytes=4096)  # fmt: skip
    draw_figure4(DEPLOYED["two"], path, device_records=[*rows, other], force=True)


def test_a_panel_far_above_one_spends_little_room_below_it(tmp_path: Path, drawn: list[Any]) -> None:
    draw_curves(DEPLOYED["one"], tmp_path / "a.png")
    draw_curves([of_model("deepseek-v4.1-flash", 196_600_000_000, 9, reads_per_token=20.0)], tmp_path / "b.png")
    labels = [[tick.get_text() for tick in figure.axes[0].get_yticklabels()] for figure in drawn]
    assert "0.2" in labels[0] and labels[1][:3] == ["0", "1", "2"]
