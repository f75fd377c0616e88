"""The table of a model: hashes in torch, signs, row-wise RMS, windows (C4, C6, C14, C25, C26)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import reference
import reference_models
import torch
import torch.nn.functional as F
from conftest import make_stream, small_layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from pagegram_io.layout import Column, Group, Layout, Region, Shape, engram, flat, pagegram
from pagegram_io.models.addressing import Addressing, OwnRows, layout_of
from pagegram_io.models.gather import gather
from pagegram_io.models.hashing import Hasher, mix, signed
from pagegram_io.models.presets import BASE, LARGE, MINI
from pagegram_io.models.rowrms import RowRms
from pagegram_io.models.schedule import Schedule
from pagegram_io.models.windows import batch_begins, held_out_begins, window_stream
from pagegram_io.tokens import Stream


@given(st.integers(0, 2**64 - 1))
@settings(max_examples=50)
def test_mix_wraps_as_unsigned_integers_do(value: int) -> None:
    assert int(mix(torch.tensor([signed(value)]))[0]) % 2**64 == reference.mix(value)


def torch_rows(layout: Layout, stream: Stream, begin: int, end: int) -> np.ndarray:
    hasher = Hasher(layout)
    return hasher.rows(hasher.hashes(stream, begin, end)).numpy().astype(np.uint64)


@pytest.mark.parametrize("layout", small_layouts(), ids=lambda layout: f"{layout.label}-{layout.row_format}")
@given(data=st.data())
@settings(max_examples=8)
def test_rows_in_torch_are_those_of_c(layout: Layout, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.sampled_from([0, 1, 2, 65535]), min_size=1, max_size=40))
    starts = sorted({0, *data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=6))})
    stream = make_stream(ids, starts)
    begin = data.draw(st.integers(0, len(ids) - 1))
    end = data.draw(st.integers(begin + 1, len(ids)))
    assert np.array_equal(torch_rows(layout, stream, begin, end), layout.rows(stream, begin, end))


def test_rows_in_torch_are_those_of_c_on_a_million_tokens(shipped: Callable[[int | None], Stream]) -> None:
    step = 100_000
    for layout, tokens in (
        (flat(200_000_000), step),
        (engram(200_000_000), step),
        (pagegram(200_000_000, 4), 10 * step),
    ):
        stream = shipped(1_000_000)
        for begin in range(0, tokens, step):
            rows = torch_rows(layout, stream, begin, begin + step)
            assert np.array_equal(rows, layout.rows(stream, begin, begin + step))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_rows_and_signs_on_a_gpu_are_those_of_the_cpu(shipped: Callable[[int | None], Stream]) -> None:
    stream = shipped(200_000)
    for layout in (flat(200_000_000), engram(200_000_000), pagegram(200_000_000, 4)):
        here, there = Addressing(layout), Addressing(layout, "cuda")
        assert torch.equal(there.rows(stream).cpu(), here.rows(stream))
        assert torch.equal(there.signs(stream, 0, 20_000).cpu(), here.signs(stream, 0, 20_000))


def two_orders_in_one_bucket() -> Layout:
    """A layout of one's own as data: the bucket by the bigram, the slot by the trigram."""
    columns = tuple(
        Column(1, 11, 97, row_base=k * 4, row_stride=8, slot_hash=2, slot_salt=k + 5, slot_count=4, head=k)
        for k in range(2)
    )
    group = Group(columns, (Region(0, 97, 8 * 10, 10, 6),), 0, 8, 2)
    return Layout("mine", (group,), 97 * 8 * 16, 97 * 8 * 16, "nf4", 10, 16, 2, 96, (2,), seed=3, page_bytes=512)


def test_rows_of_two_orders_in_one_bucket() -> None:
    layout, stream = two_orders_in_one_bucket(), make_stream([1, 2, 3, 1, 2, 4, 1, 2, 3], [0, 6])
    assert np.array_equal(torch_rows(layout, stream, 0, 9), layout.rows(stream))


@pytest.mark.parametrize("width", [2, 16, 64, 96])
@given(data=st.data())
@settings(max_examples=6)
def test_signs_are_those_of_the_twin(width: int, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    starts = sorted({0, *data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=3))})
    seed = data.draw(st.sampled_from([0, 7, 2**64 - 1]))
    shape = Shape(heads=2, row_width=width, dim=width, seed=seed)
    for layout in (flat(6000, shape), engram(9000, shape), pagegram(12000, 4, shape)):
        found = Addressing(layout).signs(make_stream(ids, starts))
        assert found.dtype == torch.float32
        columns = [(n, k) for n in (2, 3) for k in range(layout.heads)]
        for c, (n, k) in enumerate(columns):
            assert found[:, c].tolist() == reference_models.signs(ids, starts, seed, n, k, width)


def test_signs_are_balanced_and_independent_of_rows(shipped: Callable[[int | None], Stream]) -> None:
    """C14: over distinct n-grams, and over those that share a row."""
    stream = shipped(200_000)
    layout = pagegram(200_000, 4, Shape(row_width=16))
    addressing = Addressing(layout)
    rows, signs = addressing.rows(stream)[:, 0].numpy(), addressing.signs(stream)[:, 0].numpy()
    _, first = np.unique(np.stack([stream.ids[1:], stream.ids[:-1]]), axis=1, return_index=True)
    rows, signs = rows[1:][first], signs[1:][first]
    count = signs.size
    assert abs(signs.sum()) < 5 * count**0.5
    order = np.argsort(rows, kind="stable")
    same = rows[order][1:] == rows[order][:-1]
    products = (signs[order][1:] * signs[order][:-1])[same]
    assert products.size > 100_000
    assert abs(products.sum()) < 5 * products.size**0.5


# ---- windows -------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=60)
def test_window_stream_against_a_plain_twin(data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 5), min_size=4, max_size=30))
    starts = sorted({0, *data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=8))})
    length = data.draw(st.integers(1, len(ids)))
    begins = data.draw(st.lists(st.integers(0, len(ids) - length), min_size=1, max_size=5))
    found = window_stream(make_stream(ids, starts), np.array(begins), length)
    assert found.ids.tolist() == [ids[b + i] for b in begins for i in range(length)]
    wanted = [w * length + i for w, b in enumerate(begins) for i in range(length) if i == 0 or b + i in starts]
    assert found.document_starts.tolist() == wanted


def test_no_ngram_reaches_back_past_its_window_or_document() -> None:
    """Windows with the same ids have the same rows and signs, whatever stands before them and wherever they are."""
    stream = make_stream([9, 1, 2, 3, 4, 7, 8, 1, 2, 3, 4, 5], [0, 3, 9])
    layout = pagegram(12000, 4, Shape(heads=3, row_width=8, dim=16))
    windows = window_stream(stream, np.array([1, 7]), 4)
    addressing = Addressing(layout)
    for found in (addressing.rows(windows), addressing.signs(windows)):
        assert torch.equal(found[:4], found[4:])
    alone = window_stream(stream, np.array([7]), 4)
    assert torch.equal(addressing.rows(alone), addressing.rows(windows, 4, 8))


def test_batches_are_of_seed_and_step_alone() -> None:
    first = batch_begins(1, 5, 1000, 10, 8)
    assert np.array_equal(first, batch_begins(1, 5, 1000, 10, 8))
    others = (batch_begins(2, 5, 1000, 10, 8), batch_begins(1, 6, 1000, 10, 8))
    assert not any(np.array_equal(first, other) for other in others)
    every = np.concatenate([batch_begins(0, step, 12, 10, 8) for step in range(50)])
    assert set(every.tolist()) == {0, 1}  # the last window's last target is the stream's last token


@pytest.mark.parametrize(("tokens", "windows", "wanted"), [(11, 5, [0]), (21, 2, [0, 10]), (100, 3, [0, 44, 89])])
def test_held_out_windows_lie_evenly_and_apart(tokens: int, windows: int, wanted: list[int]) -> None:
    assert held_out_begins(tokens, 10, windows).tolist() == wanted
    begins = held_out_begins(1000, 10, 10**6)
    assert len(begins) == 99 and (np.diff(begins) >= 10).all()


# ---- row-wise RMS --------------------------------------------------------------------------------


def random_run(
    steps: int, rows: int, width: int, decay: float, bias_correction: str, dtype: torch.dtype, seed: int
) -> tuple[RowRms, reference_models.DenseRms, float]:
    """The lazy optimiser beside the dense one; also the largest difference between the values read in forward."""
    rng = np.random.default_rng(seed)
    rates = [0.14 * factor for factor in Schedule(steps).factors()]
    lazy = RowRms(rows, width, rates, decay=decay, bias_correction=bias_correction, dtype=dtype)
    dense = reference_models.DenseRms(rows, width, rates, decay, 0.95, bias_correction == "row")
    apart = 0.0
    for step in range(steps):
        chance = rng.choice([0.05, 0.5, 1.0])
        touched = np.flatnonzero(rng.random(rows) < chance)
        used = torch.from_numpy(touched)
        weight = lazy.read(used, step)
        wanted = torch.tensor([dense.weight[row] for row in touched], dtype=torch.float64).view(-1, width)
        apart = max(apart, float((weight.double() - wanted).abs().max()) if len(touched) else 0.0)
        gradient = torch.from_numpy(rng.normal(0, 10.0 ** rng.integers(-4, 2), (len(touched), width))).to(dtype)
        gradient[rng.random(len(touched)) < 0.2] = 0.0
        lazy.update(used, weight, gradient, step)
        dense.step(step, dict(zip(touched.tolist(), gradient.double().tolist(), strict=True)))
    return lazy, dense, apart


def settled_v(lazy: RowRms, steps: int) -> torch.Tensor:
    """v as a dense optimiser has it after the run."""
    return lazy.v.double() * lazy.beta2 ** (steps - lazy.last.double())


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("bias_correction", ["global", "row"])
def test_replay_equals_stepping_every_iteration(decay: float, bias_correction: str) -> None:
    """C4 in FP64: weights, v, and the values read in forward."""
    for seed in range(3):
        lazy, dense, apart = random_run(60, 12, 4, decay, bias_correction, torch.float64, seed)
        assert apart <= 1e-12
        assert torch.allclose(lazy.settled(60), torch.tensor(dense.weight, dtype=torch.float64), rtol=0, atol=1e-12)
        assert torch.allclose(settled_v(lazy, 60), torch.tensor(dense.v, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_replay_in_single_precision(decay: float) -> None:
    for seed in range(3):
        lazy, dense, apart = random_run(60, 12, 4, decay, "global", torch.float32, seed)
        table_rate = 0.14
        assert apart <= 1e-4 * table_rate
        wanted = torch.tensor(dense.weight, dtype=torch.float64)
        assert float((lazy.settled(60).double() - wanted).abs().max()) <= 1e-4 * table_rate
        assert torch.allclose(settled_v(lazy, 60), torch.tensor(dense.v, dtype=torch.float64), rtol=2e-5, atol=0)


@pytest.mark.parametrize(("bias_correction", "moves"), [("global", 20**0.5), ("row", 1.0)])
def test_a_first_touch_late_in_the_run_moves(bias_correction: str, moves: float) -> None:
    """4.47 or 1 times the rate, which is why every record says which."""
    lazy = RowRms(2, 3, [0.1] * 400, bias_correction=bias_correction, dtype=torch.float64)
    row = torch.tensor([1])
    lazy.update(row, lazy.read(row, 399), torch.full((1, 3), 0.02, dtype=torch.float64), 399)
    assert torch.allclose(lazy.weight[1], torch.full((3,), -0.1 * moves, dtype=torch.float64), rtol=1e-6)
    assert not lazy.weight[0].any()


def test_a_zero_gradient_moves_nothing() -> None:
    lazy = RowRms(3, 2, [0.1] * 10)
    rows = torch.tensor([0, 2])
    for step in range(3):
        lazy.update(rows, lazy.read(rows, step), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), step)
    assert not lazy.weight[:2].any() and lazy.weight[2, 1] == 0 and lazy.weight[2, 0] < 0
    assert lazy.weight.isfinite().all()


def test_what_row_rms_refuses() -> None:
    with pytest.raises(ValueError, match="bias correction 'rows'"):
        RowRms(1, 1, [0.1], bias_correction="rows")
    with pytest.raises(ValueError, match="table decay"):
        RowRms(1, 1, [0.1], decay=10.0)


# ---- schedule and presets ------------------------------------------------------------------------


def test_schedule_values() -> None:
    """C26, with the table's rate 70 times the dense one: both are multiples of the same factor."""
    schedule = Schedule(457)
    assert [schedule.factor(step) for step in (0, 23, 366, 456)] == [1 / 23, 1.0, 1.0, 1 / 91]
    assert BASE.table_lr_ratio == LARGE.table_lr_ratio == 70


@pytest.mark.parametrize("steps", [1, 2, 4, 5, 19, 20, 21, 100, 457, 915, 1000])
def test_schedule_against_its_twin(steps: int) -> None:
    assert Schedule(steps).factors() == reference_models.schedule(steps)


def test_what_a_schedule_refuses() -> None:
    with pytest.raises(ValueError, match="0 steps"):
        Schedule(0)
    with pytest.raises(ValueError, match="step 5"):
        Schedule(5).factor(5)


@pytest.mark.parametrize(
    ("memory", "options", "words"),
    [
        ("engrams", {}, "memory 'engrams'"),
        ("flat", {"slots": 4}, "slots belong to pagegram"),
        ("none", {"table_params": 1000}, "no table"),
        ("pagegram", {"slots": 0}, "0 slots"),
        ("pagegram", {"table_params": 10}, "too small"),
    ],
)
def test_layouts_that_are_none(memory: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layout_of(MINI, memory, **options)


@pytest.mark.parametrize(
    ("rows", "words"),
    [(lambda s: np.zeros((len(s), 3), np.int64), "integers"), (lambda s: np.full((len(s), 2), 5), "from 5 to 5")],
)
def test_rows_of_ones_own_are_checked(rows: Callable[[Stream], np.ndarray], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Addressing(OwnRows("mine", 5, 4, 2, rows)).rows(make_stream([1, 2, 3]))


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("bias_correction", ["global", "row"])
def test_an_update_has_the_bits_of_plain_indexing(decay: float, bias_correction: str) -> None:
    """What made it faster must not change a run: the formula with brackets is the twin."""
    rng, rates = torch.Generator().manual_seed(1), [0.1, 0.2, 0.15, 0.05]
    fast = RowRms(40, 16, rates, decay=decay, bias_correction=bias_correction)
    plain = RowRms(40, 16, rates, decay=decay, bias_correction=bias_correction)
    for step in range(4):
        rows = torch.randperm(40, generator=rng)[:25]
        gradient = torch.randn(25, 16, generator=rng) * 10.0 ** torch.randint(-9, 3, (25, 1), generator=rng)
        gradient[::5] = 0.0
        weight = fast.read(rows, step)
        assert torch.equal(weight, plain.read(rows, step))
        fast.update(rows, weight, gradient, step)
        reference_models.update_by_indexing(plain, rows, weight, gradient, step)
        for name in ("weight", "v", "last"):
            assert torch.equal(getattr(fast, name), getattr(plain, name)), name


@given(data=st.data())
@settings(max_examples=30)
def test_gather_has_the_bits_of_an_embedding(data: st.DataObject) -> None:
    """Forward, and a gradient that is summed over many uses of few rows."""
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([2, 16, 64]))
    shape = data.draw(st.sampled_from([(3,), (4, 7), (2, 9, 4)]))
    rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    places = torch.randint(0, rows, shape, generator=rng)
    weights = torch.randn(rows, width, generator=rng)
    gradient = torch.randn(*shape, width, generator=rng) * 10.0 ** torch.randint(-6, 6, (*shape, 1), generator=rng)
    ours, torchs = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    found, wanted = gather(ours, places), F.embedding(places, torchs)
    assert torch.equal(found, wanted)
    for _ in range(2):  # as two parts of a batch do
        gather(ours, places).backward(gradient)
        F.embedding(places, torchs).backward(gradient)
    assert ours.grad is not None and torchs.grad is not None and torch.equal(ours.grad, torchs.grad)
