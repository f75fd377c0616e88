"""Layouts: the complete rule token -> rows -> bytes, as data. The only place where addresses are decided.

A layout is a frozen tuple of groups; a group is the columns that read one unit together, and the regions
its units lie in. ``flat``, ``engram`` and ``pagegram`` build the three layouts of the paper for a number of
parameters; a layout of one's own is built from the same parts.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pagegram_io import native
from pagegram_io.hashes import PG1_HASHES, Hash

if TYPE_CHECKING:
    from pagegram_io.tokens import Stream

GIB = 2**30
PAGE_BYTES = 4096


def label_of(name: str, slots: int | None) -> str:
    """``engram``, ``pagegram S=4``: a layout's name with its slots, if it has any."""
    return name if slots is None else f"{name} S={slots}"


@dataclass(frozen=True)
class Column:
    """One row of each token: row_base + bucket * row_stride + slot (layouts.md section 2).

    `bucket_hash` and `slot_hash` are places in the layout's hashes: in PG1_HASHES, one less than the order.
    """

    bucket_hash: int
    bucket_salt: int
    modulus: int
    row_base: int
    row_stride: int = 1
    slot_hash: int = 0
    slot_salt: int = 0
    slot_count: int = 1
    head: int = 0
    multipliers: tuple[int, ...] = ()  # of poly, by look-back


@dataclass(frozen=True)
class Segment:
    """Units from first_unit up to the next segment's, one after the other from base_byte: a shard of a table."""

    first_unit: int
    base_byte: int


@dataclass(frozen=True)
class Region:
    """Units of one group in the file; units_per_page 0 means packed: they follow one another and may straddle.

    Packed units may lie in segments (the first at unit 0, ascending); base_byte is then that of the lowest.
    """

    base_byte: int
    unit_count: int
    unit_bytes: int
    row_bytes: int
    units_per_page: int
    segments: tuple[Segment, ...] = ()

    def runs(self) -> list[tuple[int, int]]:
        """(base byte, units) of each range in which packed units follow one another."""
        if not self.segments:
            return [(self.base_byte, self.unit_count)]
        ends = [segment.first_unit for segment in self.segments[1:]] + [self.unit_count]
        return [(s.base_byte, end - s.first_unit) for s, end in zip(self.segments, ends, strict=True)]

    def end_byte(self, page_bytes: int) -> int:
        """The byte after the region; an aligned region ends with its last page."""
        if self.segments:
            return max(base + units * self.unit_bytes for base, units in self.runs())
        if self.units_per_page == 0:
            return self.base_byte + self.unit_count * self.unit_bytes
        unit_pages = -(-self.unit_bytes // page_bytes)
        return self.base_byte + -(-self.unit_count // self.units_per_page) * unit_pages * page_bytes


@dataclass(frozen=True)
class Group:
    """Columns that read one unit of unit_rows rows together; their rows start at row_base."""

    columns: tuple[Column, ...]
    regions: tuple[Region, ...]
    row_base: int
    unit_rows: int
    order: int
    layer: int | None = None  # of the model, where a table belongs to one of several

    @property
    def row_count(self) -> int:
        return self.regions[0].unit_count * self.unit_rows


@dataclass(frozen=True)
class Window:
    """Pages of a layout that lie in a real file: page_begin .. page_begin + page_count, from a byte on a page there."""

    page_begin: int
    page_count: int
    file: str
    byte: int


@dataclass(frozen=True)
class Layout:
    """A table's complete addressing. Sizes in bytes; table_params is what was asked for.

    Of a deployed table: `model` names it, `scales` says whether a row's scales are in RAM ("resident") or read from
    a region of their own ("read"), `resident_bytes` what they take in RAM, `assumed` what the placement takes for
    granted. With `windows` its bytes are those of a virtual file: the pages of real ones that hold rows.
    """

    name: str
    groups: tuple[Group, ...]
    table_params: int
    table_params_actual: int
    row_format: str
    row_bytes: int
    row_width: int
    heads: int
    dim: int
    orders: tuple[int, ...]
    slots: int | None = None
    seed: int = 0
    page_bytes: int = PAGE_BYTES
    hashes: tuple[Hash, ...] = PG1_HASHES
    model: str | None = None
    scales: str | None = None
    assumed: str | None = None
    resident_bytes: int = 0
    windows: tuple[Window, ...] = ()

    @property
    def label(self) -> str:
        """``engram``, ``pagegram S=4``: how figures and tables name it."""
        return label_of(self.name, self.slots)

    @property
    def packed(self) -> bool:
        return any(region.units_per_page == 0 for region in self.regions)

    @property
    def placement(self) -> str:
        """``aligned``, ``packed``, or ``files``: where the rows lie in files that others made."""
        return "files" if self.windows else "packed" if self.packed else "aligned"

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(region for group in self.groups for region in group.regions)

    @property
    def column_count(self) -> int:
        return sum(len(group.columns) for group in self.groups)

    @property
    def row_count(self) -> int:
        return sum(group.row_count for group in self.groups)

    @property
    def unit_count(self) -> int:
        return sum(group.regions[0].unit_count for group in self.groups)

    @property
    def file_bytes(self) -> int:
        """From the first region's first byte to the last region's end."""
        ends = [region.end_byte(self.page_bytes) for region in self.regions]
        return max(ends) - min(region.base_byte for region in self.regions)

    @cached_property
    def _place(self) -> native.Place:
        return native.Place(self)

    def __getstate__(self) -> dict[str, object]:
        """Pickles the data alone: handles to C stay behind."""
        return {key: value for key, value in self.__dict__.items() if not key.startswith("_")}

    @property
    def page_count(self) -> int:
        return self._place.page_count

    @property
    def bytes_used_per_token(self) -> int:
        """What a lookup needs: one row of each column, in each region of its group."""
        return sum(len(group.columns) * sum(region.row_bytes for region in group.regions) for group in self.groups)

    def rows(self, stream: Stream, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Global row numbers of a stream's tokens, uint64 [tokens, columns]."""
        with native.Rows(self) as rows:
            return rows.emit(stream, begin, end)

    def pages(self, rows: np.ndarray) -> np.ndarray:
        """Pages that each token's rows lie on, uint32 [tokens, page columns]; unused places hold 0xFFFFFFFF."""
        return self._place.pages(rows)

    def address(self, row: int) -> int:
        """File offset in bytes of a global row (in its group's first region). ValueError when there is no such row."""
        for group in self.groups:
            if group.row_base <= row < group.row_base + group.row_count:
                unit, within = divmod(row - group.row_base, group.unit_rows)
                region = group.regions[0]
                return unit_byte(region, unit, self.page_bytes) + within * region.row_bytes
        raise ValueError(f"row {row} is not in this table of {self.row_count} rows")

    def place_in_file(self, byte: int) -> tuple[str, int]:
        """The real file, and the byte in it, behind a byte of a layout with windows."""
        at = bisect.bisect_right(self.windows, byte // self.page_bytes, key=lambda window: window.page_begin) - 1
        window = self.windows[at]
        return window.file, byte - window.page_begin * self.page_bytes + window.byte

    def order_of_page_column(self) -> np.ndarray:
        """The n-gram order behind each column of a page matrix, int64 [page columns]."""
        orders = np.array([group.order for group in self.groups])
        return orders[self._place.group_of_column()]

    def layer_of_page_column(self) -> np.ndarray:
        """The layer behind each column of a page matrix, int64 [page columns]; -1 where groups have none."""
        layers = np.array([-1 if group.layer is None else group.layer for group in self.groups])
        return layers[self._place.group_of_column()]

    def group_of_page_column(self) -> np.ndarray:
        """The group behind each column of a page matrix, uint32 [page columns]."""
        return self._place.group_of_column()


def about_model(layout: Layout) -> dict[str, str | int | None]:
    """What a record or a trace says of a deployed table, and of no other."""
    if layout.model is None:
        return {}
    return {name: getattr(layout, name) for name in ("model", "scales", "resident_bytes", "assumed")}


def unit_byte(region: Region, unit: int, page_bytes: int) -> int:
    """File offset in bytes of a unit."""
    if region.segments:
        segment = region.segments[bisect.bisect_right(region.segments, unit, key=lambda s: s.first_unit) - 1]
        return segment.base_byte + (unit - segment.first_unit) * region.unit_bytes
    if region.units_per_page == 0:
        return region.base_byte + unit * region.unit_bytes
    if region.unit_bytes > page_bytes:
        return region.base_byte + unit * -(-region.unit_bytes // page_bytes) * page_bytes
    page, within = divmod(unit, region.units_per_page)
    return region.base_byte + page * page_bytes + within * region.unit_bytes


# Bytes of a row of a given width. NF4, FP8 and INT8 rows carry one FP16 scale.
_ROW_BYTES: dict[str, Callable[[int], int]] = {
    "nf4": lambda width: width // 2 + 2,
    "fp8": lambda width: width + 2,
    "int8": lambda width: width + 2,
    "fp16": lambda width: 2 * width,
    "bf16": lambda width: 2 * width,
    "fp32": lambda width: 4 * width,
}
ROW_FORMATS = tuple(_ROW_BYTES)


def row_bytes_of(row_format: str, width: int) -> int:
    """Stored bytes of one row. ValueError for an unknown format, or an odd width in NF4 (two codes share a byte)."""
    if row_format not in _ROW_BYTES:
        raise ValueError(f"row format {row_format!r} is not known; choose one of {', '.join(ROW_FORMATS)}")
    if width < 1:
        raise ValueError(f"a row of {width} values; it has at least 1")
    if row_format == "nf4" and width % 2:
        raise ValueError(f"a row of {width} values cannot be NF4, which stores two values a byte; use an even width")
    return _ROW_BYTES[row_format](width)


def is_prime(n: int) -> bool:
    """Miller-Rabin with the first twelve primes as bases, which decides every n below 3.3e24."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % p == 0 for p in bases):
        return n in bases
    shift = ((n - 1) & (1 - n)).bit_length() - 1
    for base in bases:
        x = pow(base, (n - 1) >> shift, n)
        if x in (1, n - 1):
            continue
        for _ in range(shift - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def primes_below(limit: int, count: int) -> list[int]:
    """The ``count`` largest distinct primes <= limit, descending. ValueError when there are not that many."""
    primes: list[int] = []
    candidate = limit
    while len(primes) < count and candidate >= 2:
        if is_prime(candidate):
            primes.append(candidate)
        candidate -= 1
    if len(primes) < count:
        raise ValueError(
            f"there are no {count} primes up to {limit}: the table is too small for this shape; "
            "give a larger one, or fewer slots, heads or values a row"
        )
    return primes


class _Placer:
    """Gives regions their bytes and groups their rows, one after the other."""

    def __init__(self, *, page_bytes: int, packed: bool, base_byte: int) -> None:
        self.page_bytes, self.packed = page_bytes, packed
        self.byte, self.row = base_byte, 0

    def group(
        self, columns: Callable[[int], tuple[Column, ...]], *, units: int, unit_rows: int, row_bytes: int, order: int
    ) -> Group:
        unit_bytes = unit_rows * row_bytes
        per_page = 0 if self.packed else max(1, self.page_bytes // unit_bytes)
        region = Region(self.byte, units, unit_bytes, row_bytes, per_page)
        group = Group(columns(self.row), (region,), self.row, unit_rows, order)
        self.byte = region.end_byte(self.page_bytes)
        self.row += group.row_count
        return group


@dataclass(frozen=True)
class Shape:
    """What the three layouts share. Defaults are the paper's: orders 2 and 3, K = 8 heads of r = 64, d = 384, NF4."""

    orders: tuple[int, ...] = (2, 3)
    heads: int = 8
    row_width: int = 64
    dim: int = 384
    row_format: str = "nf4"
    page_bytes: int = PAGE_BYTES
    packed: bool = False
    base_byte: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        orders = self.orders
        if not orders or list(orders) != sorted(set(orders)) or orders[0] < 1 or orders[-1] > native.MAX_ORDER:
            raise ValueError(
                f"orders {','.join(map(str, orders))}: give distinct ones of 1 to {native.MAX_ORDER}, ascending: 2,3"
            )
        for name, value in (("heads", self.heads), ("row width", self.row_width), ("dim", self.dim)):
            if value < 1:
                raise ValueError(f"{name} {value} is below 1")
        if len(orders) * self.heads > 4096:
            raise ValueError(f"{self.heads} heads of {len(orders)} orders are more than 4096 rows a token")
        page = self.page_bytes
        if page < 512 or page > 2**30 or page & (page - 1):
            raise ValueError(f"a page of {page} bytes is not a power of two from 512 to 2^30; devices read 4096")
        if self.base_byte < 0 or (self.base_byte and not self.packed):
            raise ValueError(f"base byte {self.base_byte}: only a packed table starts elsewhere than at byte 0")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed {self.seed} is not in 0 to 2^64-1")

    def placer(self) -> _Placer:
        return _Placer(page_bytes=self.page_bytes, packed=self.packed, base_byte=self.base_byte)


def _too_small(name: str, params: int, shape: Shape) -> ValueError:
    return ValueError(
        f"a {name} table of {params} parameters is too small for {len(shape.orders)} orders of this shape"
    )


def _finish(
    name: str, groups: Sequence[Group], params: int, shape: Shape, *, width: int, heads: int, slots: int | None
) -> Layout:
    layout = Layout(
        name=name,
        groups=tuple(groups),
        table_params=params,
        table_params_actual=sum(group.row_count for group in groups) * width,
        row_format=shape.row_format,
        row_bytes=row_bytes_of(shape.row_format, width),
        row_width=width,
        heads=heads,
        dim=shape.dim,
        orders=shape.orders,
        slots=slots,
        seed=shape.seed,
        page_bytes=shape.page_bytes,
    )
    layout.page_count  # noqa: B018  (C checks the whole layout when the place is made)
    return layout


def flat(params: int, shape: Shape | None = None) -> Layout:
    """One row of width d an order: R_n = floor(N / (m d)) rows each (layouts.md section 1)."""
    shape = shape or Shape()
    row_bytes = row_bytes_of(shape.row_format, shape.dim)
    rows = params // (len(shape.orders) * shape.dim)
    if rows < 1:
        raise _too_small("flat", params, shape)
    placer, groups = shape.placer(), []
    for n in shape.orders:
        salt = native.salt(shape.seed, "row", n, 0)

        def columns(base: int, n: int = n, salt: int = salt) -> tuple[Column, ...]:
            return (Column(n - 1, salt, rows, base),)

        groups.append(placer.group(columns, units=rows, unit_rows=1, row_bytes=row_bytes, order=n))
    return _finish("flat", groups, params, shape, width=shape.dim, heads=1, slots=None)


def engram(params: int, shape: Shape | None = None) -> Layout:
    """K rows an order from sub-tables of distinct primes <= N / (m K r), the largest for the first heads."""
    shape = shape or Shape()
    row_bytes = row_bytes_of(shape.row_format, shape.row_width)
    count = len(shape.orders) * shape.heads
    primes = iter(primes_below(params // (count * shape.row_width), count))
    placer, groups = shape.placer(), []
    for n in shape.orders:
        for k in range(shape.heads):
            prime, salt = next(primes), native.salt(shape.seed, "row", n, k)

            def columns(base: int, n: int = n, k: int = k, salt: int = salt, prime: int = prime) -> tuple[Column, ...]:
                return (Column(n - 1, salt, prime, base, head=k),)

            groups.append(placer.group(columns, units=prime, unit_rows=1, row_bytes=row_bytes, order=n))
    return _finish("engram", groups, params, shape, width=shape.row_width, heads=shape.heads, slots=None)


def pagegram(params: int, slots: int, shape: Shape | None = None) -> Layout:
    """All K rows of an order in one bucket of K*S rows; each head picks one of its S slots there."""
    shape = shape or Shape()
    if slots < 1:
        raise ValueError(f"{slots} slots; a head chooses among at least 1, such as 4 or 15")
    heads, row_bytes = shape.heads, row_bytes_of(shape.row_format, shape.row_width)
    unit_rows = heads * slots
    primes = primes_below(params // (len(shape.orders) * unit_rows * shape.row_width), len(shape.orders))
    placer, groups = shape.placer(), []
    for n, prime in zip(shape.orders, primes, strict=True):
        bucket_salt = native.salt(shape.seed, "bucket", n, 0)

        def columns(base: int, n: int = n, bucket_salt: int = bucket_salt, prime: int = prime) -> tuple[Column, ...]:
            return tuple(
                Column(
                    bucket_hash=n - 1,
                    bucket_salt=bucket_salt,
                    modulus=prime,
                    row_base=base + k * slots,
                    row_stride=unit_rows,
                    slot_hash=n - 1,
                    slot_salt=native.salt(shape.seed, "row", n, k),
                    slot_count=slots,
                    head=k,
                )
                for k in range(heads)
            )

        groups.append(placer.group(columns, units=prime, unit_rows=unit_rows, row_bytes=row_bytes, order=n))
    return _finish("pagegram", groups, params, shape, width=shape.row_width, heads=heads, slots=slots)


LAYOUT_NAMES = ("flat", "engram", "pagegram")


def build(
    names: Iterable[str], params: int, *, slots: Sequence[int] = (4, 15), shape: Shape | None = None
) -> list[Layout]:
    """The named layouts, in the order given; pagegram once for each number of slots."""
    layouts: list[Layout] = []
    for name in names:
        if name == "flat":
            layouts.append(flat(params, shape))
        elif name == "engram":
            layouts.append(engram(params, shape))
        elif name == "pagegram":
            layouts.extend(pagegram(params, s, shape) for s in slots)
        else:
            raise ValueError(f"layout {name!r} is not known; choose among {', '.join(LAYOUT_NAMES)}")
    return layouts
