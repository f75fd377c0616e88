"""N-gram hashes as data: what an n-gram sees of its history, and how that becomes a number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagegram_io import native


class ClassMap:
    """The class of each token id, uint32 [vocabulary], read-only; native.NO_TEXT for an id without text."""

    def __init__(self, values: np.ndarray) -> None:
        if values.ndim != 1 or not values.size or values.dtype != np.uint32:
            raise ValueError(f"classes are uint32 [vocabulary], not {values.dtype} {list(values.shape)}")
        self.values = np.ascontiguousarray(values)
        self.values.flags.writeable = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassMap) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash((self.values.size, self.values[-1].item()))


@dataclass(frozen=True)
class Hash:
    """What an n-gram sees of its history, and how that becomes a number (pgio_hash in csrc/pgio.h).

    A look-back before the document's start, to a token without text, or beyond one, is missing and counts as `fill`;
    so does one to `end_id` or beyond it. `whole`: an n-gram that misses a token takes the row after the modulus.
    """

    order: int
    scheme: str = "pg1"
    multipliers: tuple[int, ...] = ()  # of mulxor, by look-back; poly has them in its columns
    fill: int = 0
    end_id: int | None = None
    vocabulary: int = 2**32
    classes: ClassMap | None = None
    whole: bool = False


PG1_HASHES = tuple(Hash(order) for order in range(1, native.MAX_ORDER + 1))
