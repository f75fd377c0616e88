"""A training run as a value: frozen, picklable, and everything that its result depends on."""

from __future__ import annotations

from dataclasses import dataclass

from pagegram_io.job import StreamSpec
from pagegram_io.layout import Layout
from pagegram_io.models.addressing import OwnRows, layout_of
from pagegram_io.models.presets import Preset


@dataclass(frozen=True)
class TrainJob:
    """One training run. The streams come by path and digest; ``out`` is the checkpoint's folder, if any."""

    preset: Preset
    stream: StreamSpec
    validation: StreamSpec
    memory: str | Layout | OwnRows = "pagegram"
    slots: int | None = None
    table_params: int | None = None
    gate: str = "scalar"
    seed: int = 0
    hash_seed: int = 0
    steps: int | None = None
    table_decay: float = 0.0
    bias_correction: str = "global"
    device: str = "cpu"
    threads: int | None = None
    compile: bool = False
    out: str | None = None
    checkpoint_every: int | None = None  # steps; None: at the end alone
    force: bool = False  # a checkpoint that exists at ``out`` may be replaced
    resume: bool = False  # go on with the checkpoint at ``out``

    @property
    def step_count(self) -> int:
        return self.preset.steps if self.steps is None else self.steps

    def layout(self) -> Layout | OwnRows | None:
        """The layout of the memory; ValueError for options that do not go together."""
        if not isinstance(self.memory, str):
            return self.memory
        return layout_of(
            self.preset, self.memory, slots=self.slots, table_params=self.table_params, seed=self.hash_seed
        )
