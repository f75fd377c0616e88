"""What a deployed model's table is, as data: where its facts come from, what was verified, its rows as tensors.

A family makes ``Layout``s. Without the headers of a real checkpoint its table is placed by assumption: each tensor
on a page boundary, one after the other, and groups layer by layer, column by column, weight before scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagegram_io.hashes import Hash
from pagegram_io.layout import PAGE_BYTES, Column, Group, Layout, Region, is_prime

SCALES = ("resident", "read")


@dataclass(frozen=True)
class TableTensor:
    """One logical matrix of rows that columns address, as checkpoints store it."""

    weight: str  # regular expression of its name; a group `shard` numbers its parts, which sort as numbers
    scale: str | None  # the same for its scales, or None
    row_base: int  # first global row of the layout that it holds
    rows: int  # rows that columns address
    stored_rows: int  # rows in the file, at least as many
    width: int  # values a row


@dataclass(frozen=True)
class RowFormat:
    """How a row is stored: bytes in each of its tensors, the weights' first and then those of its scales, if any."""

    name: str
    part_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Address:
    """One row of each token: which hash addresses which rows of which tensor."""

    tensor: int
    hash: int
    modulus: int
    row_base: int  # global
    order: int
    head: int
    rows: int = 0  # rows of its own where they are more than the modulus
    multipliers: tuple[int, ...] = ()
    layer: int | None = None


@dataclass(frozen=True)
class Family:
    """A deployed table. Texts are for people: each is a sentence or two without a full stop at its end."""

    name: str
    title: str
    source: str
    verified: str
    unverified: str
    vocabulary: int
    tokenizer: str  # whose ids it takes
    width: int  # values a row
    tensors: tuple[TableTensor, ...]
    addresses: tuple[Address, ...]
    make_hashes: Callable[[], tuple[Hash, ...]]
    formats: tuple[RowFormat, ...]  # the first is what the checkpoint holds
    end_id: int | None = None
    stream: str | None = None  # the shipped stream that is in its ids, if one is
    layer_count: int | None = None  # of the whole model, where known
    joined: TableTensor | None = None  # all rows in one tensor, as some writers store the tables of several

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that read rows, ascending; empty where that is not known."""
        return tuple(sorted({a.layer for a in self.addresses if a.layer is not None}))

    @property
    def orders(self) -> tuple[int, ...]:
        return tuple(sorted({a.order for a in self.addresses}))

    @property
    def row_count(self) -> int:
        """Stored rows."""
        return sum(tensor.stored_rows for tensor in self.tensors)

    def format_of(self, name: str | None) -> RowFormat:
        """A row format by name; None is the checkpoint's own. ValueError names those there are."""
        if name is None:
            return self.formats[0]
        found = next((form for form in self.formats if form.name == name), None)
        if found is None:
            names = ", ".join(form.name for form in self.formats)
            raise ValueError(f"{self.name} has no row format {name!r}; choose one of {names}")
        return found

    def layout(
        self,
        *,
        row_format: str | None = None,
        scales: str = "resident",
        repack: bool = False,
        page_bytes: int = PAGE_BYTES,
    ) -> Layout:
        """The table's layout by assumption. ValueError for a format that it does not have.

        scales: "resident" in RAM, so that only weights are read, or "read" from tensors of their own. repack: a row's
        parts stand together, in one tensor, and are read together. Both matter only where a row has several parts.
        """
        if scales not in SCALES:
            raise ValueError(f"scales are {' or '.join(SCALES)}, not {scales!r}")
        form = self.format_of(row_format)
        several, parts, resident = len(form.part_bytes) > 1, form.part_bytes, 0
        assumed = "each tensor on a page boundary"
        if repack:
            parts = (sum(parts),)
        elif several and scales == "resident":
            resident = sum(parts[1:]) * self.row_count
            parts, assumed = parts[:1], f"{assumed}; scales resident"
        layout = Layout(
            name=self.name,
            groups=self._groups(parts, page_bytes),
            table_params=self.row_count * self.width,
            table_params_actual=self.row_count * self.width,
            row_format=f"{form.name} repacked" if several and repack else form.name,
            row_bytes=parts[0],
            row_width=self.width,
            heads=max(a.head for a in self.addresses) + 1,
            dim=self.width * len(self.addresses) // max(len(self.layers), 1),
            orders=self.orders,
            page_bytes=page_bytes,
            hashes=self.make_hashes(),
            model=self.name,
            scales=scales if several and not repack else None,
            assumed=assumed,
            resident_bytes=resident,
        )
        layout.page_count  # noqa: B018  (C checks the whole layout when the place is made)
        return layout

    def _groups(self, part_bytes: tuple[int, ...], page_bytes: int) -> tuple[Group, ...]:
        first_bytes, byte = [], 0
        for tensor in self.tensors:
            for bytes_of_part in part_bytes:
                first_bytes.append(byte)
                byte += -(-tensor.stored_rows * bytes_of_part // page_bytes) * page_bytes
        groups = []
        for a in self.addresses:
            tensor, rows = self.tensors[a.tensor], max(a.rows, a.modulus)
            if a.row_base + rows == tensor.row_base + tensor.rows:
                rows += tensor.stored_rows - tensor.rows  # never addressed, but they are in the file
            regions = tuple(
                Region(
                    first_bytes[a.tensor * len(part_bytes) + p] + (a.row_base - tensor.row_base) * bytes_of_part,
                    rows,
                    bytes_of_part,
                    bytes_of_part,
                    0,
                )
                for p, bytes_of_part in enumerate(part_bytes)
            )
            column = Column(a.hash, 0, a.modulus, a.row_base, head=a.head, multipliers=a.multipliers)
            groups.append(Group((column,), regions, a.row_base, 1, a.order, a.layer))
        return tuple(groups)


def primes_above(limit: int, count: int) -> list[int]:
    """The `count` least primes > limit, ascending."""
    primes: list[int] = []
    candidate = limit + 1
    while len(primes) < count:
        if is_prime(candidate):
            primes.append(candidate)
        candidate += 1
    return primes
