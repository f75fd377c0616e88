"""Streams x layouts x caches to records: the exact miss table (C16), splits, warm tokens, row caches, threads (C17)."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from conftest import make_stream, small_layouts
from hypothesis import given
from hypothesis import strategies as st

import pagegram_io
from pagegram_io import native
from pagegram_io.job import Job, StreamSpec, run, run_jobs, run_outcome
from pagegram_io.layout import Layout, Shape, engram, pagegram
from pagegram_io.policy import CurvePolicy, LruPolicy, drive, size_grid
from pagegram_io.records import SimulationRecord
from pagegram_io.sizes import parse_cache
from pagegram_io.tokens import Stream, write_stream
from pagegram_io.trace import ArraySource, LayoutSource
from pagegram_io.workers import Interrupted

MADE_HERE = ("seconds", "time", "threads", "isa")  # of a record, what may differ between two runs of one job


def caches(*texts: str) -> tuple[Any, ...]:
    return tuple(parse_cache(text) for text in texts)


def text_like(count: int, vocabulary: int = 60, seed: int = 0) -> Stream:
    """Skewed tokens in documents, so that small caches hit and miss."""
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.geometric(0.1, count) - 1, vocabulary - 1)
    starts = (
        [0, *sorted(rng.choice(np.arange(1, count), min(9, count - 1), replace=False).tolist())] if count > 1 else [0]
    )
    return make_stream(ids, starts)


def facts(record: SimulationRecord) -> dict[str, Any]:
    return {key: value for key, value in dataclasses.asdict(record).items() if key not in MADE_HERE}


# ---- the exact miss table (simulator.md section 2) -----------------------------------------------

MIB = 2**20
TABLE = {  # misses (of which second half) at 256 MiB, 1 GiB, 4 GiB; compulsory
    "flat": ((21_043_198, 10_121_709), (17_041_928, 8_120_268), (8_540_977, 3_821_602), 2_371_144),
    "pagegram S=4": ((21_189_158, 10_192_426), (17_573_643, 8_377_406), (10_248_655, 4_673_265), 2_992_919),
    "pagegram S=15": ((21_072_109, 10_135_879), (17_145_297, 8_171_199), (8_877_394, 3_990_074), 2_475_120),
    "engram": ((181_603_479, 87_734_632), (160_342_798, 77_289_582), (94_527_715, 45_045_565), 2_604_153),
}
ACCESSES = {"flat": 41_251_338, "pagegram S=4": 41_251_338, "pagegram S=15": 41_251_338, "engram": 330_010_704}


def label(record: SimulationRecord) -> str:
    return record.layout if record.slots is None else f"{record.layout} S={record.slots}"


def check_table(records: list[SimulationRecord], names: set[str]) -> None:
    for name in names:
        found = {record.cache_bytes: record for record in records if label(record) == name}
        *cells, compulsory = TABLE[name]
        for size, (misses, second_half) in zip((256 * MIB, 1024 * MIB, 4096 * MIB), cells, strict=True):
            record = found[size]
            assert (record.misses, record.misses_second_half) == (misses, second_half), (name, size)
            assert record.compulsory_misses == compulsory
            assert record.accesses == ACCESSES[name]
            assert record.tokens == 20_625_669


@pytest.mark.slow
def test_c16_the_exact_miss_table_of_the_whole_stream(shipped: Any) -> None:
    records = pagegram_io.simulate(table="20B", cache="256MiB,1GiB,4GiB", tokens=shipped(None))
    assert len(records) == 12
    check_table(records, set(TABLE))
    reads = {label(r): round(r.reads_per_token, 4) for r in records if r.cache_bytes == 1024 * MIB}
    assert (reads["pagegram S=4"], reads["engram"]) == (0.8520, 7.7739)
    assert {(r.state, r.seed, r.policy, r.row_format, r.placement) for r in records} == {
        ("cold", 0, "lru", "nf4", "aligned")
    }


@pytest.mark.slow
def test_c16_the_curve_of_the_whole_stream_agrees_with_the_table(shipped: Any) -> None:
    records = pagegram_io.simulate(
        table="20B", cache="256MiB,1GiB,4GiB", layouts=("flat", "pagegram"), curve=True, tokens=shipped(None)
    )
    check_table(records, {"flat", "pagegram S=4", "pagegram S=15"})
    for name in ("flat", "pagegram S=4", "pagegram S=15"):
        curve = sorted((r.cache_pages, r.misses) for r in records if label(r) == name)
        assert len(curve) > 300
        assert curve[0] == (0, ACCESSES[name])
        misses = [m for _, m in curve]
        assert misses == sorted(misses, reverse=True)
        assert misses[-1] == TABLE[name][3]


# ---- records against an OrderedDict --------------------------------------------------------------


def twin_counts(layout: Layout, stream: Stream, capacity: int, split: str | None, warm: int) -> list[tuple[int, ...]]:
    """accesses, misses, of which second half, compulsory; by class, over the tokens after the warm ones."""
    pages = layout.pages(layout.rows(stream))
    groups = layout.group_of_page_column().tolist()
    orders = [g.order for g in layout.groups]
    names = {None: [0] * len(orders), "order": orders, "column": list(range(len(orders)))}[split]
    classes = [sorted(set(names)).index(names[g]) for g in groups]
    verdicts = np.array(reference.lru(pages.tolist(), capacity, classes).verdicts).reshape(pages.shape)
    half = warm + (len(stream) - warm) // 2
    counts = []
    for c in range(max(classes) + 1):
        mine = np.array(classes) == c
        used, found = (pages != native.NO_PAGE)[:, mine], verdicts[:, mine]
        counts.append(
            (
                int(used[warm:].sum()),
                int((found[warm:] > 0).sum()),
                int((found[half:] > 0).sum()),
                int((found[warm:] >= 128).sum()),
            )
        )
    return counts


def found_counts(records: list[SimulationRecord]) -> list[tuple[int, ...]]:
    return [(r.accesses, r.misses, r.misses_second_half, r.compulsory_misses) for r in records]


@given(
    st.sampled_from(small_layouts()),
    st.integers(2, 400),
    st.sampled_from(["none", "512B", "1KiB", "25%", "50%", "100%", "1GiB"]),
    st.sampled_from([None, "order", "column"]),
    st.booleans(),
    st.data(),
)
def test_c16_records_equal_an_ordered_dict(
    layout: Layout, tokens: int, cache: str, split: str | None, curve: bool, data: st.DataObject
) -> None:
    stream = text_like(tokens, seed=tokens)
    warm = data.draw(st.sampled_from([0, 0, 1, tokens // 2, tokens - 1]))
    job = Job(StreamSpec(), layout, caches(cache), curve=curve, warm_tokens=warm, split=split)
    records = run_outcome(job, stream=stream).asked_records
    capacity = parse_cache(cache).pages(layout.page_count, layout.page_bytes)
    assert {record.cache_pages for record in records} == {capacity}
    assert found_counts(records) == twin_counts(layout, stream, capacity, split, warm)
    full = reference.lru(layout.pages(layout.rows(stream)).tolist(), capacity).full_at_token
    assert {record.cache_full_at_token for record in records} == {full}
    assert {(r.tokens, r.warm_tokens, r.state) for r in records} == {(tokens - warm, warm, "warm" if warm else "cold")}


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_c16_every_size_of_a_curve_equals_the_fixed_size_simulator(layout: Layout, isa: str) -> None:
    stream = text_like(1500)
    job = Job(StreamSpec(), layout, caches("1KiB"), curve=True, keep_curve=True, isa=isa)
    outcome = run_outcome(job, stream=stream)
    sizes = ",".join(f"{layout.page_bytes * n}B" for n in range(1, layout.page_count + 1))
    fixed = run(Job(StreamSpec(), layout, caches("none", *sizes.split(","))), stream=stream)
    assert outcome.misses_by_size is not None
    assert outcome.misses_by_size.tolist() == [r.misses for r in fixed]
    by_pages = {r.cache_pages: facts(r) for r in fixed}
    assert {r.cache_pages for r in outcome.records} == {*size_grid(layout.page_count), 1024 // layout.page_bytes}
    for record in outcome.records:
        assert facts(record) == by_pages[record.cache_pages]
    assert [r.cache_pages for r in outcome.records] == sorted(r.cache_pages for r in outcome.records)


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_splits_by_order_and_column_add_up_to_the_whole(layout: Layout) -> None:
    stream = text_like(1500)
    summed = ("accesses", "misses", "misses_second_half", "compulsory_misses")
    for curve in (False, True):
        for warm in (0, 500):
            [whole] = run_outcome(Job(StreamSpec(), layout, caches("2KiB"), curve, warm), stream=stream).asked_records
            for split, names in (("order", sorted(layout.orders)), ("column", list(range(len(layout.groups))))):
                job = Job(StreamSpec(), layout, caches("2KiB"), curve, warm, split=split)
                parts = run_outcome(job, stream=stream).asked_records
                assert [getattr(part, split) for part in parts] == names
                for key in summed:
                    assert sum(getattr(part, key) for part in parts) == getattr(whole, key), key
                assert sum(p.bytes_used_per_token for p in parts) == whole.bytes_used_per_token
                assert sum(p.reads_per_token for p in parts) == pytest.approx(whole.reads_per_token)
            assert (whole.order, whole.column) == (None, None)


def test_quantities_of_a_record_follow_from_its_counts() -> None:
    stream = text_like(2001)
    layout = pagegram(12000, 4, Shape(heads=3, row_width=8, dim=16, page_bytes=512, seed=5))
    [r] = run(Job(StreamSpec(), layout, caches("2KiB")), stream=stream)
    assert r.reads_per_token == r.misses / 2001
    assert r.reads_per_token_second_half == r.misses_second_half / 1001  # tokens with index >= floor(2001 / 2)
    assert r.reads_per_token_without_compulsory == (r.misses - r.compulsory_misses) / 2001
    assert r.hit_rate == 1 - r.misses / r.accesses
    assert r.bytes_read_per_token == r.misses * 512 / 2001
    assert r.bytes_used_per_token == 6 * 6
    assert r.read_amplification == r.bytes_read_per_token / 36
    assert r.compulsory_share == r.compulsory_misses / r.misses
    assert (r.cache_bytes, r.cache_pages, r.page_bytes, r.pages) == (2048, 4, 512, layout.page_count)
    assert (r.stream_sha256, r.documents, r.stream) == (stream.sha256, len(stream.document_starts), "test")
    assert (r.table_params, r.table_params_actual, r.slots, r.heads) == (12000, layout.row_count * 8, 4, 3)
    assert (r.row_format, r.row_bytes, r.row_width, r.dim, r.orders, r.seed) == ("nf4", 6, 8, 16, "2,3", 5)
    assert r.memory_bytes > r.cache_bytes
    for key, value in dataclasses.asdict(r).items():  # integers stay integers
        assert isinstance(value, (int, float, str, type(None))), key
        assert not isinstance(value, np.generic), key


def test_a_percentage_is_of_the_layouts_own_pages_rounded_down() -> None:
    stream = text_like(300)
    for layout in small_layouts():
        for text, share in (("10%", 0.1), ("99.9%", 0.999), ("100%", 1.0)):
            pages = int(layout.page_count * round(share * 1000) // 1000)
            if not pages:
                continue
            [record] = run(Job(StreamSpec(), layout, caches(text)), stream=stream)
            assert record.cache_pages == pages
            assert record.cache_bytes == pages * layout.page_bytes


def test_more_sizes_than_one_handle_takes_share_a_pass() -> None:
    stream, layout = text_like(2000), small_layouts()[1]
    texts = [f"{512 * (1 + i % 15)}B" for i in range(150)]
    records = run(Job(StreamSpec(), layout, caches(*texts)), stream=stream)
    assert len(records) == 150
    for i in range(15, 150):
        assert facts(records[i]) == facts(records[i % 15])
    assert records[3].misses == twin_counts(layout, stream, 4, None, 0)[0][1]


@given(st.one_of(st.integers(1, 300), st.integers(1, 2**32)))
def test_the_grid_of_a_curve_is_64_sizes_a_decade(page_count: int) -> None:
    grid = size_grid(page_count)
    assert grid[0] == 0
    assert grid[-1] == page_count
    assert grid == sorted(set(grid))
    assert set(range(1, min(page_count, 25) + 1)) <= set(grid)  # below, every size
    for a, b in zip(grid[1:], grid[2:], strict=False):
        assert b <= (a + 0.5) * 10 ** (1 / 64) + 0.5


# ---- --cache-unit row ----------------------------------------------------------------------------


def row_cache_twin(
    layout: Layout, stream: Stream, capacity: int, split: str | None, warm: int
) -> list[tuple[int, ...]]:
    """An OrderedDict of rows; a token reads the pages that hold rows which it missed."""
    rows = layout.rows(stream).tolist()
    verdicts = reference.lru(rows, capacity).verdicts
    groups = layout.groups
    names = {None: [0] * len(groups), "order": [g.order for g in groups], "column": list(range(len(groups)))}[split]
    classes = sorted(set(names))
    half = warm + (len(stream) - warm) // 2
    counts = [[0, 0, 0, 0] for _ in classes]

    def add(token: int, which: int, kept: list[int]) -> None:
        for g, pages in enumerate(reference.token_pages(groups, kept, layout.page_bytes)):
            counts[classes.index(names[g])][which] += len(pages)

    for t in range(warm, len(stream)):
        add(t, 0, rows[t])
        missed = [row if v else reference.NO_ROW for row, v in zip(rows[t], verdicts[t], strict=True)]
        add(t, 1, missed)
        if t >= half:
            add(t, 2, missed)
        add(t, 3, [row if v >= 128 else reference.NO_ROW for row, v in zip(rows[t], verdicts[t], strict=True)])
    return [tuple(c) for c in counts]


@given(
    st.sampled_from(small_layouts()),
    st.integers(2, 250),
    st.integers(0, 60),
    st.sampled_from([None, "order", "column"]),
    st.data(),
)
def test_a_row_cache_equals_an_ordered_dict_of_rows(
    layout: Layout, tokens: int, held: int, split: str | None, data: st.DataObject
) -> None:
    stream = text_like(tokens, seed=tokens)
    warm = data.draw(st.sampled_from([0, 0, tokens // 2]))
    cache = f"{held * layout.row_bytes}B" if held else "none"
    job = Job(StreamSpec(), layout, caches(cache), cache_unit="row", split=split, warm_tokens=warm)
    records = run(job, stream=stream)
    assert found_counts(records) == row_cache_twin(layout, stream, held, split, warm)
    assert {(r.cache_unit, r.cache_pages, r.cache_bytes) for r in records} == {("row", held, held * layout.row_bytes)}


def test_row_caches_of_several_sizes_and_what_they_refuse() -> None:
    stream, layout = text_like(500), small_layouts()[2]
    records = run(Job(StreamSpec(), layout, caches("none", "60B", "1KiB"), cache_unit="row"), stream=stream)
    for record, held in zip(records, (0, 10, 170), strict=True):
        assert found_counts([record]) == row_cache_twin(layout, stream, held, None, 0)
    with pytest.raises(ValueError, match="one size at a time"):
        run(Job(StreamSpec(), layout, caches("1KiB"), curve=True, cache_unit="row"), stream=stream)
    with pytest.raises(ValueError, match="not even one unit of 6 bytes"):
        run(Job(StreamSpec(), layout, caches("5B"), cache_unit="row"), stream=stream)


# ---- C17: threads, batches, processes ------------------------------------------------------------


def test_c17_records_do_not_depend_on_the_thread_count(shipped: Any) -> None:
    def records(threads: int, curve: bool) -> list[dict[str, Any]]:
        made = pagegram_io.simulate(
            table=["200M", "20M"], cache="1MiB,8MiB", tokens=shipped(20_000), threads=threads, curve=curve, by="order"
        )
        assert {record.threads for record in made} == {threads}
        return [facts(record) for record in made]

    for curve in (False, True):
        one = records(1, curve)
        made = list(dict.fromkeys((r["table_params"], r["layout"], r["slots"]) for r in one))
        wanted = [("flat", None), ("engram", None), ("pagegram", 4), ("pagegram", 15)]
        assert made == [(params, *layout) for params in (200_000_000, 20_000_000) for layout in wanted]
        assert records(2, curve) == one
        assert records(3, curve) == one


def test_c17_records_do_not_depend_on_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = text_like(3000)
    jobs = [
        Job(StreamSpec(), layout, caches("2KiB"), curve, 7, split="order")
        for layout in small_layouts()
        for curve in (False, True)
    ]
    whole = [[facts(r) for r in run(job, stream=stream)] for job in jobs]
    rows = Job(StreamSpec(), small_layouts()[2], caches("200B"), cache_unit="row")
    whole_rows = facts(run(rows, stream=stream)[0])
    for places in (1, 100, 4097):
        monkeypatch.setattr("pagegram_io.policy.BATCH_PLACES", places)
        assert [[facts(r) for r in run(job, stream=stream)] for job in jobs] == whole
        assert facts(run(rows, stream=stream)[0]) == whole_rows


def test_c17_instruction_sets_give_the_same_records(isa: str, shipped: Any) -> None:
    for layout in (engram(200_000_000), pagegram(200_000_000, 15, Shape(packed=True))):
        jobs = [Job(StreamSpec(), layout, caches("4MiB"), curve=True, isa=i) for i in ("portable", isa)]
        portable, other = (run(job, stream=shipped(20_000)) for job in jobs)
        assert [facts(r) for r in other] == [facts(r) for r in portable]
        assert {r.isa for r in other} == {isa}


def test_a_job_is_a_value_that_another_process_can_do(tmp_path: Path) -> None:
    stream = text_like(1000)
    path = tmp_path / "stream.u16"
    write_stream(path, stream.ids)
    spec = StreamSpec(str(path), sha256=stream.sha256)
    layout = small_layouts()[2]
    layout.page_count  # noqa: B018 (makes the handle that must stay behind)
    job = Job(spec, layout, caches("2KiB"), curve=True)
    again = pickle.loads(pickle.dumps(job))
    assert again == job
    assert [facts(r) for r in run(again)] == [facts(r) for r in run(job)]
    write_stream(path, stream.ids[:-1], force=True)
    with pytest.raises(ValueError, match="changed: its sha256"):
        run(again)


def test_c17_equal_arguments_give_equal_results() -> None:
    stream = text_like(1000)
    pair = [pagegram_io.simulate(table="2M", cache="16KiB", tokens=stream) for _ in range(2)]
    assert [facts(r) for r in pair[0]] == [facts(r) for r in pair[1]]
    other = pagegram_io.simulate(table="2M", cache="16KiB", tokens=stream, shape=Shape(seed=1))
    assert {r.seed for r in other} == {1}
    assert [r.misses for r in other] != [r.misses for r in pair[0]]


# ---- progress and stopping -----------------------------------------------------------------------


def test_progress_counts_every_place_and_a_stop_says_how_far_it_got() -> None:
    stream = text_like(50_000)
    jobs = [Job(StreamSpec(), layout, caches("2KiB")) for layout in small_layouts()[:3]]
    total = sum(len(layout.group_of_page_column()) for layout in small_layouts()[:3]) * 50_000
    told: list[int] = []
    run_jobs(jobs, stream=stream, report=told.append)
    assert sum(told) == total

    def stop(accesses: int) -> None:
        told.append(accesses)
        if sum(told) > 100_000:
            raise KeyboardInterrupt

    for threads in (1, 2):
        told.clear()
        with pytest.raises(Interrupted) as caught:
            run_jobs(jobs, stream=stream, report=stop, threads=threads)
        assert isinstance(caught.value, KeyboardInterrupt)
        assert 100_000 < caught.value.done < total
        assert caught.value.total == total


def test_a_job_that_fails_says_so_and_ends_the_others() -> None:
    stream = text_like(50_000)
    good, bad = small_layouts()[0], small_layouts()[1]
    jobs = [Job(StreamSpec(), good, caches("2KiB")), Job(StreamSpec(), bad, caches("1B"))]
    with pytest.raises(ValueError, match="not even one unit"):
        run_jobs(jobs, stream=stream)


# ---- pages from elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda x: x.label)
def test_c15_the_curve_of_an_array_of_pages_is_that_of_its_layout(layout: Layout) -> None:
    stream = text_like(1500)
    pages = layout.pages(layout.rows(stream))
    ours = run(Job(StreamSpec(), layout, caches("1KiB"), curve=True), stream=stream)
    theirs = pagegram_io.curve(
        pages, stream=stream, cache="1KiB", page_bytes=layout.page_bytes, page_count=layout.page_count
    )
    keys = ("cache_pages", "cache_bytes", "accesses", "misses", "misses_second_half", "compulsory_misses",
            "reads_per_token", "hit_rate", "cache_full_at_token", "tokens", "pages", "stream_sha256")  # fmt: skip
    assert [[getattr(r, k) for k in keys] for r in ours] == [[getattr(r, k) for k in keys] for r in theirs]


def test_a_curve_of_one_dimension_and_of_sparse_ids() -> None:
    rng = np.random.default_rng(3)
    trace = rng.integers(0, 30, 2000)
    distances = np.bincount(reference.stack_distances(trace.tolist()), minlength=31)
    for pages in (trace, trace.astype(np.int16), (trace * 10**15).astype(np.uint64), trace.astype(">u8") + 2**33):
        records = pagegram_io.curve(pages)
        for record in records:
            if record.cache_pages <= 30:
                assert record.misses == distances[0] + distances[record.cache_pages + 1 :].sum()
        assert records[-1].misses == 30
    with pytest.raises(ValueError, match="the pages are of 2000 tokens"):
        pagegram_io.curve(trace, stream=text_like(10))
    fixed = pagegram_io.curve(trace, every_size=False, cache=["40KiB"])
    assert [r.misses for r in fixed] == [distances[0] + distances[11:].sum()]


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"warm_tokens": 1000}, "leaves nothing to count"),
        ({"warm_tokens": -1}, "negative"),
        ({"cache": "1B"}, "not even one unit"),
        ({"cache": []}, "no cache size"),
        ({"cache": ""}, "is empty"),
        ({"cache": "0%"}, "0%"),
        ({"cache_unit": "word"}, "cache unit 'word'"),
        ({"by": "rank"}, "not by 'rank'"),
        ({"table": "1"}, "too small"),
        ({"table": "1e9"}, "1e9"),
        ({"layouts": ["cuckoo"]}, "not known"),
        ({"slots": [0], "layouts": ["pagegram"]}, "slots"),
        ({"threads": -1}, "greater than 0"),
        ({"tokens": "/nowhere/stream.u16"}, "No such file"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_refused(arguments: dict[str, Any], match: str) -> None:
    given_arguments = {"table": "2M", "cache": "16KiB", "tokens": text_like(1000)} | arguments
    with pytest.raises((ValueError, OSError), match=match):
        pagegram_io.simulate(**given_arguments)


def test_an_unknown_policy_and_a_source_that_ends_early_are_refused() -> None:
    layout = small_layouts()[0]
    with pytest.raises(ValueError, match="policy 'fifo'"):
        run(Job(StreamSpec(), layout, caches("1KiB"), policy="fifo"), stream=text_like(10))
    source = LayoutSource(layout, text_like(100))
    source.token_count = 200
    classes = np.zeros(source.page_columns, np.uint32)
    work = LruPolicy(layout.page_count, [3], classes)
    with pytest.raises(ValueError, match="ended after 100 of 200"):
        drive(source, work, [3], warm_tokens=0, dtype=np.uint32, tick=None)


def test_policies_behind_one_face_agree() -> None:
    """A source driven twice, through either policy: a later policy or source fits the same way."""
    layout, stream = small_layouts()[1], text_like(1200)
    makers: list[Callable[[], tuple[Any, int]]] = [
        lambda: (LayoutSource(layout, stream), layout.page_count),
        lambda: (ArraySource(layout.pages(layout.rows(stream))), layout.page_count),
    ]
    sizes, results = [0, 1, 4, 9, 15, 99], []
    for make in makers:
        source, page_count = make()
        classes = np.arange(source.page_columns, dtype=np.uint32)
        for work in (LruPolicy(page_count, sizes, classes), CurvePolicy(page_count, sizes, classes, "auto")):
            source.rewind()
            results.append(drive(source, work, sizes, warm_tokens=100, dtype=np.uint32, tick=None))
    for result in results[1:]:
        for counts in ("total", "second_half"):
            for key in ("accesses", "compulsory", "misses"):
                assert np.array_equal(getattr(getattr(result, counts), key), getattr(getattr(results[0], counts), key))
        assert result.full_at_token == results[0].full_at_token
        assert (result.tokens, result.sizes) == (1100, sizes)
