"""A table on flash, slow and obvious: pages in an OrderedDict, one read at a time, rows byte by byte."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np

from pagegram_io.pack import row_byte
from pagegram_io.row_format import decode_rows
from pagegram_io.table_file import read_header


class Table:
    def __init__(self, path: Path, capacity: int) -> None:
        self.header, self.content, self.capacity = read_header(path), path.read_bytes(), capacity
        assert self.header.layout is not None
        self.layout = self.header.layout
        self.cache: OrderedDict[int, bytes] = OrderedDict()
        self.accesses = self.reads = self.evictions = 0

    def page(self, number: int) -> None:
        self.accesses += 1
        if number in self.cache:
            self.cache.move_to_end(number)
            return
        self.reads += 1
        if len(self.cache) == self.capacity:
            self.cache.popitem(last=False)
            self.evictions += 1
        begin = self.header.data_byte + number * self.header.page_bytes
        self.cache[number] = self.content[begin : begin + self.header.page_bytes]

    def row_bytes(self, rows: np.ndarray) -> np.ndarray:
        """uint8 [tokens, columns, row_bytes]; each token's pages are accessed in the layout's order."""
        out = np.empty((*rows.shape, self.layout.row_bytes), np.uint8)
        for t, token in enumerate(rows):
            for number in self.layout.pages(token[None])[0]:
                if number != 0xFFFFFFFF:
                    self.page(int(number))
            for c, row in enumerate(token):
                at = row_byte(self.header, int(row)) - self.header.data_byte
                for i in range(self.layout.row_bytes):
                    number, within = divmod(at + i, self.header.page_bytes)
                    out[t, c, i] = self.cache[number][within]
        return out

    def lookup(self, rows: np.ndarray) -> np.ndarray:
        """float32 [tokens, columns, width]."""
        stored = self.row_bytes(rows).reshape(rows.size, self.layout.row_bytes)
        values = decode_rows(self.layout.row_format, stored, self.layout.row_width)
        return values.reshape(*rows.shape, self.layout.row_width)
