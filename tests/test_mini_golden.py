"""A mini model that was trained and packed elsewhere gives, from flash, the losses it gave there (C19, C28)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from pagegram_io.checkpoint_table import read_checkpoint_layout, weights_sha256
from pagegram_io.models.evaluation_job import EvalJob, run
from pagegram_io.record_files import read_records
from pagegram_io.table_file import read_header
from pagegram_io.tokens import read_stream, shipped_path

MINI = Path(__file__).parent / "golden" / "mini"


def losses(**options):
    job = EvalJob(str(MINI), table_path=str(MINI / "packed.safetensors"), windows=16, threads=1, **options)
    return run(job)[0]


def test_losses_from_ram_and_flash_are_equal_and_those_of_golden():
    in_ram, from_flash = losses(in_ram=True), losses(cache_bytes=1 << 20, buffered=True)
    assert in_ram["loss"] == from_flash["loss"]
    fp32, nf4 = read_records(MINI / "losses.jsonl")
    assert in_ram["loss"] == pytest.approx(nf4["loss"], abs=1e-4)  # other processors sum in another order
    assert abs(fp32["loss"] - nf4["loss"]) < 0.01


def test_its_files_are_small_and_its_layout_is_the_config_s():
    assert (MINI / "packed.safetensors").stat().st_size <= 5 << 20
    assert sum(file.stat().st_size for file in MINI.iterdir()) <= 8 << 20
    assert read_header(MINI / "packed.safetensors").weights_sha256 == weights_sha256(MINI)
    layout = read_checkpoint_layout(MINI)
    assert (layout.name, layout.slots, layout.row_width) == ("pagegram", 4, 16)
    rows = layout.rows(read_stream(shipped_path("mini-test.u16.xz"), eod=0, vocabulary=2048, limit=1000))
    assert int(rows.max()) < layout.row_count and rows.dtype == np.uint64


def test_figure1_is_drawn_from_the_shipped_records(tmp_path, capsys):
    from pagegram_io.cli import run as invoke
    from pagegram_io.commands.figure1 import SHIPPED

    assert invoke(["figure1", "-o", str(tmp_path), "--formats", "svg"]) == 0
    assert "pagegram S=15" in capsys.readouterr().out
    records = read_records(SHIPPED)
    runs = {(r["memory"], r["slots"], r["seed"]) for r in records if r["kind"] == "train"}
    assert len(runs) == sum(r["kind"] == "train" for r in records) == 18
    assert SHIPPED.stat().st_size <= 300_000
