"""A trained model from checkpoint to flash: packed, in RAM and page by page, the same loss (C19, C28, C32)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_models_train import STREAM, TINY, VALIDATION, tiny_job

from pagegram_io.cli import run as run_command
from pagegram_io.errors import FormatError
from pagegram_io.job import Job, StreamSpec
from pagegram_io.job import run as simulate
from pagegram_io.models import checkpoint
from pagegram_io.models.evaluate import Evaluation, evaluate
from pagegram_io.models.evaluation_job import EvalJob
from pagegram_io.models.evaluation_job import run as run_evaluation
from pagegram_io.models.row_sources import FlashRows, PackedRows
from pagegram_io.models.train import run
from pagegram_io.models.windows import held_out_begins, window_stream
from pagegram_io.sizes import parse_cache
from pagegram_io.table import Table
from pagegram_io.table_file import read_header
from pagegram_io.tokens import Stream

MEMORIES = ("flat", "engram", "pagegram")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained checkpoint of each memory, and the packed table of each in NF4 and FP32."""
    folder = tmp_path_factory.mktemp("models")
    preset = dataclasses.replace(TINY, table_params=200_000, steps=20, validation_windows=30)
    for memory in MEMORIES:
        out = str(folder / memory)
        run(tiny_job(preset=preset, memory=memory, out=out), stream=STREAM, validation=VALIDATION)
        for row_format in ("nf4", "fp32"):
            table = str(folder / f"{memory}.{row_format}.safetensors")
            assert run_command(["pack", out, "-o", table, "--row-format", row_format]) == 0
    return folder


@pytest.mark.parametrize("memory", MEMORIES)
def test_flash_and_ram_give_the_same_loss_to_the_last_bit(memory: str, checkpoints: Path) -> None:
    out, nf4, fp32 = (str(checkpoints / f"{memory}{end}") for end in ("", ".nf4.safetensors", ".fp32.safetensors"))

    def record(**options: object) -> dict[str, object]:
        return run_evaluation(dataclasses.replace(EvalJob(out), **options), validation=VALIDATION)[0]  # type: ignore[arg-type]

    trained, in_ram = record(), record(table_path=nf4, in_ram=True)
    assert in_ram["source"] == "nf4 in RAM" and in_ram["reads_per_token"] is None
    assert 0 < abs(float(in_ram["loss"]) - float(trained["loss"])) < 0.05  # type: ignore[arg-type]
    layout = checkpoint.load(out).addressing.layout  # type: ignore[union-attr]
    stream = window_stream(VALIDATION, held_out_begins(len(VALIDATION), TINY.context, 30), TINY.context)
    for pages in (4, 16, 1000):
        on_flash = record(table_path=nf4, cache_bytes=4096 * pages, buffered=True)
        assert on_flash["source"] == "nf4 on flash" and on_flash["loss"] == in_ram["loss"]
        assert on_flash["loss_error"] == in_ram["loss_error"]
        simulated = simulate(Job(StreamSpec(), layout, (parse_cache(str(4096 * pages)),)), stream=stream)
        assert on_flash["reads_per_token"] == simulated[0].reads_per_token
    for options in ({"in_ram": True}, {"cache_bytes": 65536, "buffered": True}):
        assert record(table_path=fp32, **options)["loss"] == trained["loss"]


@pytest.mark.parametrize("memory", MEMORIES)
def test_vectors_from_every_source_are_the_same(memory: str, checkpoints: Path) -> None:
    loaded = checkpoint.load(str(checkpoints / memory))
    assert loaded.addressing is not None and loaded.rows is not None
    stream = window_stream(VALIDATION, np.array([3, 40, 40]), 16)
    path = checkpoints / f"{memory}.fp32.safetensors"
    with Table.open(path, cache_bytes=65536, buffered=True) as table:
        for begin, end in ((0, 48), (16, 32), (32, 48)):
            wanted = loaded.rows[loaded.addressing.rows(stream, begin, end)]
            assert torch.equal(PackedRows(path).vectors(stream, begin, end), wanted)
            assert torch.equal(FlashRows(table).vectors(stream, begin, end), wanted)


def test_the_command_says_where_the_table_was(
    checkpoints: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagegram_io.tokens import write_stream

    monkeypatch.chdir(tmp_path)
    write_stream("test.u16", VALIDATION.ids)
    out, table = str(checkpoints / "pagegram"), str(checkpoints / "pagegram.nf4.safetensors")
    arguments = ["eval", out, "--table", table, "--validation", "test.u16", "--cache", "64KiB", "--buffered"]
    capsys.readouterr()
    assert run_command([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["cache_bytes"] == 65536 and record["engine"] in ("io_uring", "psync")
    assert run_command(arguments) == 0
    assert "nf4 on flash" in capsys.readouterr().out
    other = str(checkpoints / "engram.nf4.safetensors")
    assert run_command(["eval", out, "--table", other]) == 2
    assert "another layout (engram)" in capsys.readouterr().err


def test_what_is_read_ahead_is_read_once(checkpoints: Path) -> None:
    """With and without reading ahead, behind a cache that has room for all of a batch and for less and less of it."""

    class InTurn(FlashRows):
        def ahead(self, stream: Stream) -> None:
            pass

    loaded = checkpoint.load(str(checkpoints / "engram"))
    path = checkpoints / "engram.nf4.safetensors"
    for pages in (4, 16, 40, 1000):
        losses, counts = [], []
        for source in (InTurn, FlashRows):
            with Table.open(path, cache_bytes=4096 * pages, buffered=True) as table:
                found = evaluate(
                    loaded.model, VALIDATION, windows=30, addressing=loaded.addressing, source=source(table)
                )
                stats = table.stats()
            losses.append(found.window_losses.tolist())
            counts.append((stats.lookups, stats.accesses, stats.reads, stats.evictions))
        assert losses[0] == losses[1] and counts[0] == counts[1]


def test_the_next_batch_is_read_ahead(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch but the first, which nothing comes before."""
    asked: list[list[int]] = []
    monkeypatch.setattr(FlashRows, "ahead", lambda self, stream: asked.append(stream.ids.tolist()))
    loaded = checkpoint.load(str(checkpoints / "flat"))
    with Table.open(checkpoints / "flat.nf4.safetensors", cache_bytes=65536, buffered=True) as table:
        evaluate(loaded.model, VALIDATION, windows=5, addressing=loaded.addressing, source=FlashRows(table))
    begins = held_out_begins(len(VALIDATION), TINY.context, 5)
    batches = [window_stream(VALIDATION, some, TINY.context) for some in (begins[2:4], begins[4:])]
    assert asked == [batch.ids.tolist() for batch in batches]


def test_the_difference_of_losses_is_of_pairs() -> None:
    one, other = Evaluation(np.array([4.0, 9.0, 2.0])), Evaluation(np.array([3.0, 7.0, 2.0]))
    difference, error = one.less(other)
    assert difference == 1.0 and error == pytest.approx(1 / 3**0.5) and error < one.loss_error / 3
    assert one.less(one) == (0.0, 0.0)
    with pytest.raises(ValueError, match="3 and 2 windows"):
        one.less(Evaluation(np.zeros(2)))


def test_the_bench_of_quality_on_a_checkpoint(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it records, and that it stops where losses or reads are not equal."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "bench"))
    import quality

    options = quality.Options(12, ("8KiB", "64KiB", "4MiB"), True, str(tmp_path))
    records = quality.quality_of(checkpoints / "pagegram", options, validation=VALIDATION)
    assert [record["cache_bytes"] for record in records] == [8192, 65536, 4 << 20]
    assert all(record["loss_flash"] == record["loss_nf4"] != record["loss_fp32"] for record in records)
    assert all(record["reads"] == record["simulated_misses"] > 0 for record in records)
    first = records[0]
    assert first["nf4_less_fp32"] == pytest.approx(first["loss_nf4"] - first["loss_fp32"], abs=1e-12)
    assert 0 < first["nf4_less_fp32_error"] < first["loss_error"] and not list(tmp_path.iterdir())
    same, other = Evaluation(np.array([1.0, 2.0])), Evaluation(np.array([1.0, np.nextafter(2.0, 3.0)]))
    quality.check("run", "4KiB", same, same, 5, 5)
    with pytest.raises(SystemExit, match="is not that from RAM"):
        quality.check("run", "4KiB", same, other, 5, 5)
    with pytest.raises(SystemExit, match="5 reads, and the simulator counts 6 misses"):
        quality.check("run", "4KiB", same, same, 5, 6)


def test_a_damaged_page_is_named_from_ram_as_from_flash(checkpoints: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.safetensors"
    source = checkpoints / "pagegram.nf4.safetensors"
    data = bytearray(source.read_bytes())
    data[read_header(source).data_byte + 10] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="page 0 does not fit its checksum"):
        PackedRows(path)
