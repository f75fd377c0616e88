"""The sizes of models: one frozen ``Preset`` each. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace

MEMORIES = ("none", "flat", "engram", "pagegram")
GATES = ("scalar", "context")


@dataclass(frozen=True)
class Preset:
    """A decoder, the table beside it and how both are trained. Windows and contexts are in tokens."""

    name: str
    dim: int
    layers: int
    heads: int
    vocabulary: int
    context: int
    batch_windows: int  # windows a step
    micro_windows: int  # of which so many are in memory at a time
    steps: int
    memory_layers: tuple[int, ...]
    table_params: int
    slots: int = 4
    row_width: int = 64
    heads_per_order: int = 8
    orders: tuple[int, ...] = (2, 3)
    lr: float = 2e-3
    table_lr_ratio: float = 70.0  # the table's learning rate over the dense one
    validation_windows: int = 2048
    validate_every: int = 50  # steps
    eod: int = 0  # the id that ends a document, in both streams
    train_stream: str | None = None  # files of traces/; None: none ships, and a person names one
    validation_stream: str | None = None

    def __post_init__(self) -> None:
        if self.dim % self.heads or self.dim // self.heads % 2:
            raise ValueError(f"dim {self.dim} does not make {self.heads} heads of an even width")
        if self.batch_windows % self.micro_windows:
            raise ValueError(f"{self.batch_windows} windows are not a whole number of {self.micro_windows} at a time")
        if not self.memory_layers or not all(0 <= layer < self.layers for layer in self.memory_layers):
            raise ValueError(f"memory layers {self.memory_layers} are not among {self.layers} layers")

    @property
    def step_tokens(self) -> int:
        return self.batch_windows * self.context


# base is the paper's model, large has more width and depth: 60,953,472 and 92,283,392 parameters without memory.
BASE = Preset(
    "base",
    dim=384,
    layers=6,
    heads=6,
    vocabulary=65_536,
    context=1024,
    batch_windows=128,
    micro_windows=8,
    steps=457,
    memory_layers=(0, 4),
    table_params=200_000_000,
    validation_stream="multilingual-20m.u16.xz",
)
LARGE = replace(BASE, name="large", dim=512, layers=8, heads=8)
MINI = Preset(
    "mini",
    dim=96,
    layers=3,
    heads=3,
    vocabulary=2048,
    context=256,
    batch_windows=8,
    micro_windows=8,
    steps=800,
    memory_layers=(0, 1),
    table_params=4_000_000,
    row_width=16,
    table_lr_ratio=10.0,  # at 70, with batches so small, a table hardly helps: docs/log.md
    validation_windows=256,
    validate_every=100,
    train_stream="mini-train.u16.xz",
    validation_stream="mini-test.u16.xz",
)

PRESETS = {preset.name: preset for preset in (MINI, BASE, LARGE)}


def preset_of(name: str) -> Preset:
    """The preset of this name; ValueError when there is none."""
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is not known; choose {', '.join(PRESETS)}")
    return PRESETS[name]
