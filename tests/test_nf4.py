"""NF4: plain Python = NumPy = C on every instruction set = torch, bit for bit; error bound, zeros, tiny and large."""

from __future__ import annotations

import numpy as np
import pytest
import reference_nf4 as reference
import torch
from conftest import ISAS
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pagegram_io import nf4
from pagegram_io.models import nf4_torch
from pagegram_io.nf4 import Counts

LEVELS = [float(level) for level in nf4.LEVELS]
WIDTHS = [2, 4, 6, 8, 10, 14, 16, 18, 24, 30, 32, 34, 62, 64, 66, 94, 128, 254, 384]
# Below a subnormal FP16, around 2^-14, at and above 65504, subnormal FP32, and midpoints of the levels themselves.
SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 2.0**-14, 6.1e-5, 65504.0, 65519.0, 65520.0,
           3.4e38, 1e-45, -1e-40, *map(float, nf4.MIDPOINTS), *LEVELS]  # fmt: skip


def encodings(values: np.ndarray) -> dict[str, np.ndarray]:
    """Each way of encoding."""
    ways = {isa: nf4.encode(values, isa=isa) for isa in ISAS}
    ways["numpy"] = nf4.encode_numpy(values)
    ways["torch"] = nf4_torch.encode(torch.from_numpy(values)).numpy()
    return ways


def decodings(rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """Each way of decoding, as the bits of its values."""
    ways = {isa: nf4.decode(rows, width, isa=isa) for isa in ISAS}
    ways["numpy"] = nf4.decode_numpy(rows, width)
    ways["torch"] = nf4_torch.decode(torch.from_numpy(rows), width).numpy()
    return {name: values.view(np.uint32) for name, values in ways.items()}


def check_all_ways(values: np.ndarray) -> None:
    """All ways agree with plain Python, and the error is within the bound where no scale is clamped."""
    rows = np.stack([np.frombuffer(reference.encode_row(row.tolist(), LEVELS), np.uint8) for row in values])
    for name, encoded in encodings(values).items():
        assert np.array_equal(encoded, rows), name
    expected = np.array([reference.decode_row(row.tobytes(), LEVELS) for row in rows], np.float32)
    for name, bits in decodings(rows, values.shape[1]).items():
        assert np.array_equal(bits, expected.view(np.uint32)), name
    absmax = np.abs(values.astype(np.float64)).max(axis=1)
    errors = np.abs(expected.astype(np.float64) - values).max(axis=1)
    bounds = np.array([reference.error_bound(most) for most in absmax])
    assert (errors <= bounds)[absmax <= 65504].all()
    tiny = (absmax > 0) & (absmax < 2**-24)
    counts = Counts(*(int(np.count_nonzero(which)) for which in (tiny, absmax > 65504, absmax == 0)))
    for isa in ISAS:
        assert nf4.encode_counted(values, isa=isa)[1] == counts


def random_values(rows: int, width: int, seed: int) -> np.ndarray:
    """Rows of very different magnitudes, normal and long-tailed values."""
    rng = np.random.default_rng(seed)
    scales = 2.0 ** rng.uniform(-30, 17, (rows, 1))
    return (rng.standard_normal((rows, width)) ** rng.choice([1, 3], (rows, 1)) * scales).astype(np.float32)


def test_the_levels_are_qloras() -> None:
    assert nf4.LEVELS[7] == 0 and (np.diff(nf4.LEVELS) > 0).all()
    assert np.allclose(nf4.LEVELS, reference.levels_in_theory(), rtol=0, atol=2e-7)
    assert [reference.fp32(level) for level in LEVELS] == LEVELS
    widest = float(np.diff(nf4.LEVELS.astype(np.float64)).max()) / 2
    assert 0.1519 < widest < 0.15191
    assert [int(code) for code in nf4.encode(nf4.LEVELS[None])[0, :8]] == [16 * (2 * i + 1) + 2 * i for i in range(8)]


@pytest.mark.parametrize("width", WIDTHS)
def test_all_ways_agree(width: int) -> None:
    check_all_ways(random_values(40, width, width))


@settings(max_examples=150)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 20).map(lambda half: 2 * half)),
        elements=st.one_of(
            st.sampled_from([float(np.float32(x)) for x in SPECIAL]),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            st.floats(-1, 1, width=32),
        ),
    )
)
def test_any_values(values: np.ndarray) -> None:
    check_all_ways(values)


def test_what_lies_on_a_midpoint_takes_the_lower_level() -> None:
    for neighbour, offset in ((nf4.MIDPOINTS, 0), (np.nextafter(nf4.MIDPOINTS, np.float32(2)), 1)):
        values = np.concatenate([neighbour, [np.float32(1)]]).astype(np.float32)[None]  # the scale is 1
        rows = nf4.encode(values)
        codes = np.stack([rows[0, :8] & 15, rows[0, :8] >> 4], axis=1).reshape(-1)
        assert codes.tolist() == [*(i + offset for i in range(15)), 15]
        check_all_ways(values)


def test_every_scale_and_every_code() -> None:
    """All 65,536 bit patterns of a scale, infinities and NaNs included, under all sixteen codes."""
    rows = np.empty((2**16, 8 + 2), np.uint8)
    rows[:, :8] = [16 * (2 * i + 1) + 2 * i for i in range(8)]
    rows[:, 8:] = np.arange(2**16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    wide = np.concatenate([rows[:, :8], rows[:, :8], rows], axis=1)  # a tail of its own for each instruction set
    scales = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float64)
    finite = np.isfinite(scales)
    expected = (nf4.LEVELS.astype(np.float64) * scales[finite, None]).astype(np.float32)
    for width, matrix in ((16, rows), (48, wide)):
        ways = decodings(matrix, width)
        for name, bits in ways.items():
            assert np.array_equal(bits[finite], np.tile(expected, width // 16).view(np.uint32)), name
            nan = np.isnan(bits.view(np.float32))
            assert np.array_equal(nan, np.isnan(ways["portable"].view(np.float32))), name
            assert np.array_equal(bits[~nan], ways["portable"][~nan]), name
        for isa in ISAS:
            assert np.array_equal(ways[isa], ways["portable"])


def test_zero_rows_are_exact(isa: str) -> None:
    values = np.zeros((3, 34), np.float32)
    values[1] = -0.0
    values[2, 5] = 1
    rows, counts = nf4.encode_counted(values, isa=isa)
    assert counts == Counts(zero=2)
    assert (rows[:2, :17] == 0x77).all() and not rows[:2, 17:].any()
    decoded = nf4.decode(rows, 34, isa=isa)
    assert all(reference.is_exact_zero(value) for value in decoded[:2].reshape(-1).tolist())
    assert decoded[2, 5] == 1 and np.count_nonzero(decoded) == 1


def test_tiny_and_clamped_rows_are_counted(isa: str) -> None:
    absmax = [1e-45, 2.0**-25, float(np.nextafter(np.float32(2**-24), np.float32(0))), 2.0**-24, 65504, 65505, 3e38]
    values = np.zeros((len(absmax), 10), np.float32)
    values[:, 3] = absmax
    rows, counts = nf4.encode_counted(values, isa=isa)
    assert counts == Counts(tiny=3, clamped=2, zero=0)
    scales = rows[:, 5:].copy().view("<f2")[:, 0].tolist()
    assert scales == [2.0**-24] * 4 + [65504.0] * 3
    decoded = nf4.decode(rows, 10, isa=isa)[:, 3].tolist()
    assert decoded == [0, np.float32(LEVELS[12] * 2**-24), *[2.0**-24] * 2, *[65504.0] * 3]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from([2, 8, 18, 64]))
def test_quantising_twice_changes_nothing(seed: int, width: int) -> None:
    values = random_values(20, width, seed)
    values = values[np.abs(values).max(axis=1) >= 2.0**-14]
    if len(values):
        rows = nf4.encode(values)
        assert np.array_equal(nf4.encode(nf4.decode(rows, width)), rows)


def test_a_process_that_flushes_subnormals_gets_the_same_bits(isa: str) -> None:
    values = random_values(200, 34, 5)
    values[:50] *= np.float32(2.0**-100)
    values[50:60] = np.float32(1e-45)
    rows = nf4.encode(values)
    decoded = nf4.decode(rows, 34)
    try:
        torch.set_flush_denormal(True)  # of the CPU, for this thread
        assert np.array_equal(nf4.encode(values, isa=isa), rows)
        assert np.array_equal(nf4.decode(rows, 34, isa=isa).view(np.uint32), decoded.view(np.uint32))
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("extra", [0, 1, 7, 4096])
def test_rows_may_lie_apart_and_anywhere(isa: str, extra: int) -> None:
    values = random_values(50, 66, extra)
    expected = nf4.encode(values)
    for skip in range(3):
        memory = np.full((50, 35 + extra), 0xAA, np.uint8).reshape(-1)
        memory = np.concatenate([np.full(skip, 0xAA, np.uint8), memory])
        rows = memory[skip:].reshape(50, 35 + extra)
        out, _ = nf4.encode_counted(values, out=rows[:, :35], isa=isa)
        assert np.array_equal(out, expected)
        assert (rows[:, 35:] == 0xAA).all() and (memory[:skip] == 0xAA).all()
        assert np.array_equal(nf4.decode(out, 66, isa=isa), nf4.decode(expected, 66))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 7, 17])
def test_what_is_not_finite_is_refused_by_row(bad: float, column: int) -> None:
    values = random_values(9, 18, 1)
    values[6, column] = bad
    ways = [lambda isa=isa: nf4.encode(values, isa=isa) for isa in ISAS]
    ways += [lambda: nf4.encode_numpy(values), lambda: nf4_torch.encode(torch.from_numpy(values))]
    for way in ways:
        with pytest.raises(ValueError, match="row 6 holds a NaN or an infinity"):
            way()


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="even width"):
        nf4.encode(np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match="even width"):
        nf4_torch.encode(torch.zeros(2, 3))
    with pytest.raises(ValueError, match="float32"):
        nf4.encode(np.zeros((2, 4)))
    with pytest.raises(ValueError, match="float32"):
        nf4_torch.encode(torch.zeros(4))
    with pytest.raises(ValueError, match="at least 1"):
        nf4.encode(np.zeros((2, 0), np.float32))
    with pytest.raises(ValueError, match=r"uint8 \[2, 4\]"):
        nf4.decode(np.zeros((2, 5), np.uint8), 4)
    with pytest.raises(ValueError, match="uint8"):
        nf4_torch.decode(torch.zeros(2, 4), 4)
    with pytest.raises(ValueError, match="beside one another"):
        nf4.decode(np.zeros((2, 8), np.uint8)[:, ::2], 4)
    with pytest.raises(ValueError, match="beside one another"):
        nf4.decode(np.broadcast_to(np.zeros(4, np.uint8), (2, 4)), 4)
    assert nf4.encode(np.zeros((0, 4), np.float32)).shape == (0, 4)
    assert nf4.decode(np.zeros((0, 4), np.uint8), 4).shape == (0, 4)
