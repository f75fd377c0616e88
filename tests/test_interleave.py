"""Schedules of documents in turn, and what their steps read, against plain lists and an OrderedDict."""

from __future__ import annotations

import numpy as np
import pytest
import reference_serving as twin
from conftest import make_stream, small_layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from pagegram_io import native, native_caches
from pagegram_io.interleave import INTERLEAVE_MAX, ServedSource, Serving, blocks, schedule
from pagegram_io.job import Job, StreamSpec, run
from pagegram_io.layout import Layout
from pagegram_io.locality import distinct_share, filler_warning, mean, quantile, serve, shape_of
from pagegram_io.sizes import parse_cache
from pagegram_io.tokens import Stream

LAYOUTS = small_layouts()


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """A few short documents of few ids, with or without prompts."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    ids = rng.integers(0, draw(st.sampled_from([2, 5, 30])), sum(lengths)).astype(np.uint16)
    starts = np.cumsum([0, *lengths[:-1]]).astype(np.uint64)
    prompts = None
    if draw(st.booleans()):
        prompts = np.array([draw(st.integers(0, length)) for length in lengths], np.uint64)
    return Stream(ids, starts, 40, "drawn", prompts)


servings = st.builds(
    Serving,
    interleave=st.integers(1, 6),
    window=st.sampled_from([None, 1, 3, 7, 64]),
    draft=st.integers(0, 3),
    seed=st.integers(0, 3),
)


def visits(stream: Stream, serving: Serving) -> list[list[twin.Visit]]:
    prompts = None if stream.prompt_lengths is None else stream.prompt_lengths.tolist()
    return twin.schedule(stream.document_lengths.tolist(), prompts, serving.interleave, serving.window)


@given(streams(), servings, st.integers(1, 100))
def test_schedule_is_the_lists(stream: Stream, serving: Serving, lines: int) -> None:
    found: list[list[twin.Visit]] = []
    for block in blocks(schedule(stream, serving, lines=lines), lines):
        assert len(block.positions) <= lines or len(set(block.steps.tolist())) == 1
        columns = [getattr(block, n).tolist() for n in ("positions", "steps", "depths", "decode")]
        for p, s, d, made in zip(*columns, strict=True):
            if s == len(found):
                found.append([])
            assert s == len(found) - 1
            found[-1].append(twin.Visit(p, d, made))
    assert found == visits(stream, serving)
    assert sorted(v.position for step in found for v in step) == list(range(len(stream)))


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=30),
    st.lists(st.integers(0, 1), min_size=30, max_size=30),
)
def test_places_seen_before_in_the_step_are_blanked(lines: list[list[int]], moves: list[int]) -> None:
    pages = np.array(lines, np.uint32)
    pages[pages == 9] = native.NO_PAGE
    steps = np.cumsum(moves[: len(lines)]) + 5
    merged = pages.copy()
    left = native_caches.merge_steps(merged, steps)
    seen: set[tuple[int, int]] = set()
    for line, step, kept in zip(pages.tolist(), steps.tolist(), merged.tolist(), strict=True):
        for page, found in zip(line, kept, strict=True):
            assert found == (native.NO_PAGE if (step, page) in seen else page)
            seen.add((step, page))
    assert left == (merged != native.NO_PAGE).sum()


def pages_by_visit(layout: Layout, stream: Stream, serving: Serving) -> dict[twin.Visit, list[int]]:
    """Pages of each token, then of the tokens drafted after it where it is made; by the whole document before it."""
    ids = stream.ids.tolist()
    matrix = layout.pages(layout.rows(stream)).tolist()
    pages = {}
    for step in visits(stream, serving):
        for visit in step:
            lines = [matrix[visit.position]]
            if visit.decode and serving.draft:
                drafted = twin.drafts(visit.position, serving.draft, ids, serving.seed, stream.vocabulary)
                text = ids[visit.position - visit.depth : visit.position + 1] + drafted
                lines += layout.pages(layout.rows(make_stream(text)))[-serving.draft :].tolist()
            pages[visit] = [page for line in lines for page in line if page != native.NO_PAGE]
    return pages


@settings(max_examples=60)
@given(streams(), servings, st.sampled_from(LAYOUTS), st.integers(1, 40), st.integers(0, 30), st.integers(0, 60))
def test_served_counts_are_the_twins(
    stream: Stream, serving: Serving, layout: Layout, capacity: int, pollution: int, warm: int
) -> None:
    warm = min(warm, len(stream) - 1)
    classes = np.zeros(len(layout.group_of_page_column()), np.uint32)
    source = ServedSource(layout, stream, serving)
    shape = shape_of(source, classes)
    served, none = serve(
        source, [capacity, 0], classes, warm_tokens=warm, pollution_pages=pollution, shape=shape, by_step=True
    )
    pages = pages_by_visit(layout, stream, serving)
    steps = visits(stream, serving)
    seen = twin.serve(
        steps,
        pages.__getitem__,
        capacity,
        turns=serving.interleave,
        warm=warm,
        pollution=min(pollution, capacity),
        log=stream.prompt_lengths is not None,
    )
    total, later = served.result.total, served.result.second_half
    assert (int(total.accesses[0]), int(total.misses[0][0]), int(total.compulsory[0])) == (
        seen.accesses,
        seen.misses,
        seen.compulsory,
    )
    assert (int(later.misses[0][0]), int(later.compulsory[0])) == (seen.second, seen.second_compulsory)
    assert served.result.full_at_token == [seen.full_at]
    assert (served.sums["cold"][0], served.sums["decode"][0]) == (seen.cold, seen.decode)
    assert served.step_reads is not None
    reads, own = served.step_reads[:, 0]
    assert np.array_equal(reads, own)  # of one class
    assert reads.tolist() == np.bincount(seen.step_reads, minlength=len(reads)).tolist()
    assert shape.pages_by_step.tolist() == np.bincount(seen.pages_by_step).tolist()
    assert (shape.touched, shape.steps) == (seen.touched, len(steps))
    assert (shape.reused.tolist(), shape.followers.tolist()) == ([seen.reused], [seen.followers])
    assert int(none.result.total.misses[0][0]) == int(none.result.total.accesses[0])
    if seen.step_reads:
        ordered = sorted(seen.step_reads)
        assert quantile(reads, 0.5) == ordered[(len(ordered) + 1) // 2 - 1]
        assert quantile(reads, 0.99) == ordered[-(-len(ordered) * 99 // 100) - 1]
        assert mean(reads) == pytest.approx(np.mean(ordered))


@settings(max_examples=25)
@given(
    streams(),
    servings,
    st.sampled_from(LAYOUTS[:6]),
    st.sampled_from(["page", "row"]),
    st.lists(st.integers(0, 400), min_size=65, max_size=140),
    st.integers(0, 30),
)
def test_any_number_of_sizes_in_one_pass_equals_each_alone(
    stream: Stream, serving: Serving, layout: Layout, unit: str, sizes: list[int], pollution: int
) -> None:
    """More than one handle takes, in any order, some twice, some of no pages and some above the table."""
    classes = layout.group_of_page_column()
    source = ServedSource(layout, stream, serving, unit=unit)
    more = {"warm_tokens": len(stream) // 3, "pollution_pages": 0 if unit == "row" else pollution, "by_step": True}
    together = serve(source, sizes, classes, **more)  # type: ignore[arg-type]
    assert [one.result.sizes for one in together] == [[size] for size in sizes]
    for k in range(0, len(sizes), 9):
        (alone,) = serve(source, [sizes[k]], classes, **more)  # type: ignore[arg-type]
        for a, b in ((alone.result.total, together[k].result.total),
                     (alone.result.second_half, together[k].result.second_half)):  # fmt: skip
            assert (a.accesses.tolist(), a.compulsory.tolist(), a.misses.tolist()) == (
                b.accesses.tolist(), b.compulsory.tolist(), b.misses.tolist()
            )  # fmt: skip
        assert alone.result.full_at_token == together[k].result.full_at_token
        assert {n: v.tolist() for n, v in alone.sums.items()} == {n: v.tolist() for n, v in together[k].sums.items()}
        assert alone.step_reads is not None and together[k].step_reads is not None
        wide = np.zeros((2, *together[k].step_reads.shape), np.int64)  # the table of many sizes may be wider
        wide[0, ..., : alone.step_reads.shape[-1]], wide[1] = alone.step_reads, together[k].step_reads
        assert wide[0].tolist() == wide[1].tolist()


@settings(max_examples=30)
@given(streams(), servings, st.sampled_from(LAYOUTS[:6]), st.integers(1, 60))
def test_fixed_size_curve_and_split_agree(stream: Stream, serving: Serving, layout: Layout, capacity: int) -> None:
    """The curve goes through policy.drive, fixed sizes by verdicts: both give the same counts, and orders sum up."""
    caches = (parse_cache(str(capacity * layout.page_bytes)),)
    job = Job(StreamSpec(), layout, caches, serving=serving, pollution_bytes=3 * layout.page_bytes)
    fixed = run(job, stream=stream)[0]
    curve = next(
        r for r in run(Job(**{**job.__dict__, "curve": True}), stream=stream) if r.cache_pages == fixed.cache_pages
    )
    for name in ("accesses", "misses", "misses_second_half", "compulsory_misses", "cache_full_at_token", "tokens"):
        assert getattr(fixed, name) == getattr(curve, name), name
    parts = run(Job(**{**job.__dict__, "split": "order"}), stream=stream)
    for name in ("accesses", "misses", "misses_second_half", "compulsory_misses"):
        assert sum(getattr(part, name) for part in parts) == getattr(fixed, name)
    assert {part.pages_per_step_max for part in parts} == {fixed.pages_per_step_max}


@settings(max_examples=30)
@given(streams(), servings, st.sampled_from(LAYOUTS[:6]), st.integers(1, 60))
def test_a_row_cache_reads_the_pages_of_missed_rows(
    stream: Stream, serving: Serving, layout: Layout, capacity: int
) -> None:
    serving = Serving(serving.interleave, serving.window)  # drafts are tested on pages
    source = ServedSource(layout, stream, serving, unit="row")
    classes = np.zeros(len(layout.group_of_page_column()), np.uint32)
    (served,) = serve(source, [capacity], classes)
    rows = layout.rows(stream).tolist()
    misses = 0
    cache: dict[int, None] = {}
    for step in visits(stream, serving):
        seen: set[int] = set()
        absent = np.full((len(step), layout.column_count), native.NO_ROW, np.uint64)
        for i, visit in enumerate(step):
            for c, row in enumerate(rows[visit.position]):
                if row in seen:
                    continue
                seen.add(row)
                if row in cache:
                    del cache[row]
                else:
                    absent[i, c] = row
                    if len(cache) == capacity:
                        del cache[next(iter(cache))]
                cache[row] = None
        pages = layout.pages(absent)
        misses += len(set(pages[pages != native.NO_PAGE].tolist()))
    assert int(served.result.total.misses[0][0]) == misses


@pytest.mark.parametrize("layout", LAYOUTS[:3], ids=lambda layout: layout.label)
def test_pollution_of_a_stream_as_it_stands(layout: Layout) -> None:
    """Another file through the same cache, on the default path: what policy.drive counts is what a twin counts."""
    rng = np.random.default_rng(3)
    stream = make_stream(np.minimum(rng.geometric(0.2, 400) - 1, 39), [0, 50, 300])
    caches = tuple(parse_cache(str(n * layout.page_bytes)) for n in (4, 16))
    serving = Serving()
    pages = pages_by_visit(layout, stream, serving)
    for curve in (False, True):
        records = run(
            Job(StreamSpec(), layout, caches, curve=curve, pollution_bytes=9 * layout.page_bytes), stream=stream
        )
        for r in (r for r in records if r.cache_pages in (4, 16)):
            seen = twin.serve(
                visits(stream, serving), pages.__getitem__, r.cache_pages, turns=1, pollution=min(9, r.cache_pages)
            )
            assert (r.misses, r.misses_second_half, r.compulsory_misses) == (seen.misses, seen.second, seen.compulsory)
            assert r.cache_full_at_token == seen.full_at


def test_one_document_alone_is_the_stream_as_it_stands() -> None:
    layout = LAYOUTS[0]
    rng = np.random.default_rng(5)
    stream = make_stream(rng.integers(0, 30, 3000), [0, 700, 701, 2000])
    caches = (parse_cache("4KiB"),)
    plain = run(Job(StreamSpec(), layout, caches), stream=stream)[0]
    served = run(Job(StreamSpec(), layout, caches, serving=Serving()), stream=stream)[0]
    assert (plain.misses, plain.accesses, plain.misses_second_half) == (
        served.misses,
        served.accesses,
        served.misses_second_half,
    )
    assert plain.steps is None and served.steps == 3000 and served.adjacent_reuse is not None
    assert (served.document_tokens_p50, served.document_tokens_max) == (700, 1299)


def test_facts_name_documents_and_steps() -> None:
    layout = LAYOUTS[0]
    stream = Stream(
        np.arange(400, dtype=np.uint16) % 30,
        np.array([0, 200], np.uint64),
        40,
        "log",
        np.array([100, 150], np.uint64),
    )
    job = Job(StreamSpec(), layout, (parse_cache("none"),), serving=Serving(2, 64, 1))
    record = run(job, stream=stream)[0]
    assert (record.prompt_tokens, record.decode_tokens, record.interleave, record.window, record.draft) == (
        250, 150, 2, 64, 1,
    )  # fmt: skip
    assert record.decode_reads_per_token and record.prefill_reads_per_token
    assert record.decode_reads_per_token > record.prefill_reads_per_token  # drafts are read too
    whole = record.decode_reads_per_token * 150 + record.prefill_reads_per_token * 250
    assert whole == pytest.approx(record.misses)
    assert record.pages_before_merging is not None and record.accesses < record.pages_before_merging


def test_filler_is_noticed() -> None:
    assert filler_warning(make_stream([7] * 2000)) is not None
    assert filler_warning(make_stream(list(range(50)) * 40)) is not None
    rng = np.random.default_rng(0)
    text = make_stream(np.minimum(rng.geometric(0.02, 5000) - 1, 999))
    assert filler_warning(text) is None and distinct_share(text) > 0.5
    assert filler_warning(make_stream([7] * 20)) is None  # too short to say
    assert distinct_share(make_stream([1, 2, 3])) == 1.0


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"interleave": 0}, "0 documents"),
        ({"interleave": INTERLEAVE_MAX + 1}, "documents"),
        ({"window": 0}, "window of 0"),
        ({"draft": -1}, "-1 drafted"),
    ],
)
def test_servings_that_are_none(arguments: dict[str, int], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Serving(**arguments)


def test_a_step_too_large_to_merge_is_refused() -> None:
    stream = make_stream(np.zeros(60_000, np.uint16))
    with pytest.raises(ValueError, match="step of"):
        ServedSource(LAYOUTS[0], stream, Serving(65_536, 60_000))


def test_another_file_does_not_pass_through_rows() -> None:
    job = Job(StreamSpec(), LAYOUTS[0], (parse_cache("4KiB"),), cache_unit="row", pollution_bytes=4096)
    with pytest.raises(ValueError, match="rows"):
        run(job, stream=make_stream([1, 2, 3, 4]))
