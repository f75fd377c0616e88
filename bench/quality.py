"""What does a table lose when it is packed to NF4, and when it is then read from flash?

For every finished run with a table in a folder of runs (as `pagegram-io figure1 --train --runs DIR` leaves them: a
checkpoint NAME/ beside its record NAME.jsonl), on the same held-out windows: the loss with the FP32 table in RAM, with
the table packed to NF4 in RAM, and with that file read through the runtime behind three cache sizes. NF4 less FP32 is
a difference of the same windows, and its noise is the standard error of those differences over the windows.

The program stops with status 1 unless every window's loss from flash equals that from RAM to the last bit, and the
runtime's reads equal the misses that the simulator counts on the same windows, for each cache size.

    python bench/quality.py RUNS                  # all held-out windows of the preset
    python bench/quality.py RUNS --windows 8      # whether it works; give -o /dev/null to keep no records
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ledger
import numpy as np
import torch

from pagegram_io.checkpoint_table import read_checkpoint_table
from pagegram_io.job import Job, StreamSpec
from pagegram_io.job import run as simulate
from pagegram_io.layout import Layout, label_of
from pagegram_io.models.checkpoint import TABLE, Loaded, load, read_config, validation_in
from pagegram_io.models.evaluate import Evaluation, RamRows, RowSource, evaluate
from pagegram_io.models.row_sources import FlashRows, PackedRows
from pagegram_io.models.windows import held_out_begins, window_stream
from pagegram_io.pack import with_row_format, write_trained_file
from pagegram_io.paired import interval
from pagegram_io.sizes import parse_bytes, parse_cache
from pagegram_io.table import Table
from pagegram_io.tokens import Stream

CACHES = ("64KiB", "256KiB", "1MiB")


@dataclass(frozen=True)
class Options:
    """How checkpoints are evaluated; windows: None for as many as the preset has; scratch: where tables are packed."""

    windows: int | None
    caches: Sequence[str]
    buffered: bool
    scratch: str | None


def runs_in(folder: Path) -> list[Path]:
    """Checkpoints of finished runs that have a table, by name."""
    found = [record.with_suffix("") for record in sorted(folder.glob("*.jsonl"))]
    return [path for path in found if path.is_dir() and read_config(str(path))["layout"] is not None]


def quality_of(path: Path, options: Options, *, validation: Stream | None = None) -> list[dict[str, Any]]:
    """A record for each cache size of one checkpoint. SystemExit where losses or reads are not equal."""
    loaded = load(str(path))
    stream = validation if validation is not None else validation_in(loaded.config, str(path)).read()
    count = options.windows if options.windows is not None else loaded.model.preset.validation_windows
    assert loaded.addressing is not None and loaded.rows is not None

    def loss(source: RowSource) -> Evaluation:
        return evaluate(loaded.model, stream, windows=count, addressing=loaded.addressing, source=source)

    layout, rows = read_checkpoint_table(path)
    layout = with_row_format(layout, "nf4")
    fp32 = loss(RamRows(loaded.addressing, loaded.rows))
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        file = Path(folder) / "table.safetensors"
        packed = write_trained_file(file, layout, rows.read)
        nf4 = loss(PackedRows(file))
        difference, error = nf4.less(fp32)
        misses = simulated_misses(layout, stream, loaded, options.caches, count)
        about = about_checkpoint(path, loaded, stream, len(nf4.window_losses)) | {
            "zero_rows": packed.counts.zero, "loss_fp32": fp32.loss, "loss_nf4": nf4.loss, "loss_error": nf4.loss_error,
            "nf4_less_fp32": difference, "nf4_less_fp32_error": error,
        }  # fmt: skip
        records = []
        for cache, missed in zip(options.caches, misses, strict=True):
            size = parse_bytes(cache)
            with Table.open(file, cache_bytes=size, buffered=options.buffered) as table:
                flash, read = loss(FlashRows(table)), table.record()
            check(path.name, cache, nf4, flash, read["reads"], missed)
            records.append(about | {
                "cache_bytes": size, "loss_flash": flash.loss, "reads": read["reads"], "simulated_misses": missed,
                "reads_per_token": read["reads_per_token"], "engine": read["engine"], "direct": read["direct"],
                **ledger.provenance_of_run(),
            })  # fmt: skip
    return records


def simulated_misses(layout: Layout, stream: Stream, loaded: Loaded, caches: Sequence[str], windows: int) -> list[int]:
    """Misses of the packed table's layout on the windows, for each cache size."""
    context = loaded.model.preset.context
    of_windows = window_stream(stream, held_out_begins(len(stream), context, windows), context)
    job = Job(StreamSpec(), layout, tuple(parse_cache(cache) for cache in caches))
    return [record.misses for record in simulate(job, stream=of_windows)]


def check(name: str, cache: str, ram: Evaluation, flash: Evaluation, reads: int, misses: int) -> None:
    if not np.array_equal(ram.window_losses.view(np.uint64), flash.window_losses.view(np.uint64)):
        raise SystemExit(f"{name}, cache {cache}: the loss from flash {flash.loss!r} is not that from RAM {ram.loss!r}")
    if reads != misses:
        raise SystemExit(f"{name}, cache {cache}: {reads} reads, and the simulator counts {misses} misses")


def about_checkpoint(path: Path, loaded: Loaded, stream: Stream, windows: int) -> dict[str, Any]:
    config, preset = loaded.config, loaded.model.preset
    return {
        "kind": "bench_quality", "name": path.name, "preset": preset.name, "memory": config["memory"],
        "slots": config["slots"], "seed": config["seed"], "hash_seed": config["hash_seed"],
        "step": config["state"]["step"], "table_sha256": hashlib.sha256((path / TABLE).read_bytes()).hexdigest(),
        "stream": stream.name, "stream_sha256": stream.sha256, "windows": windows, "context": preset.context,
        "tokens": windows * preset.context, "row_format": "nf4", "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }  # fmt: skip


def report(records: list[dict[str, Any]], caches: Sequence[str]) -> None:
    """A line for a checkpoint: losses, the difference and its standard error, reads a token behind each cache."""
    first = records[0]
    reads = "  ".join(f"{record['reads_per_token']:9.4f}" for record in records)
    difference = f"{first['nf4_less_fp32']:+.6f} ± {first['nf4_less_fp32_error']:.6f}"
    print(
        f"{first['name']:28} {first['loss_fp32']:9.6f} {first['loss_nf4']:9.6f}  {difference:22}  {reads}", flush=True
    )


def report_arms(every: list[list[dict[str, Any]]]) -> None:
    """Over the seeds of each memory, where there are several."""
    arms: dict[tuple[str, int | None], list[float]] = {}
    for first, *_ in every:
        arms.setdefault((first["memory"], first["slots"]), []).append(first["nf4_less_fp32"])
    for key, values in arms.items():
        mean, half_width = interval(values)
        if half_width is not None:
            difference = f"{mean:+.6f} ± {half_width:.6f}"
            print(f"{label_of(*key):28} NF4 less FP32 {difference}, 95 % interval of {len(values)} seeds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of runs [e.g. figures/runs]")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these runs alone [e.g. mini-flat-seed0]")
    parser.add_argument("--windows", type=int, help="held-out windows; default: as many as the preset has [e.g. 8]")
    parser.add_argument("--cache", nargs="+", default=CACHES, metavar="SIZE",
                        help="page caches before the file; default: 64KiB 256KiB 1MiB [e.g. 128KiB 4MiB]")  # fmt: skip
    parser.add_argument("--buffered", action="store_true", help="where the folder's file system has no O_DIRECT")
    parser.add_argument("--scratch", metavar="DIR", help="where tables are packed; default: the system's [e.g. build]")
    parser.add_argument("-o", "--output", type=Path, default=ledger.RESULTS / "quality.jsonl",
                        help="records are appended here; default: bench/results/quality.jsonl")  # fmt: skip
    given = parser.parse_args()
    if given.windows is not None and given.windows < 2:
        parser.error(f"--windows {given.windows}: a standard error takes at least 2")
    torch.set_num_threads(1)
    options = Options(given.windows, given.cache, given.buffered, given.scratch)
    try:
        paths = [path for path in runs_in(given.runs) if given.only is None or path.name in given.only]
        if not paths:
            raise SystemExit(f"{given.runs}: no finished run with a table here (a folder NAME beside NAME.jsonl)")
        print(f"{'':28} {'FP32':>9} {'NF4':>9}  {'NF4 less FP32':22}  reads/token behind {', '.join(given.cache)}")
        every = []
        for path in paths:
            every.append(quality_of(path, options))
            report(every[-1], given.cache)
            ledger.append(every[-1], given.output)
    except (OSError, ValueError) as error:
        raise SystemExit(f"quality.py: {error}") from None
    report_arms(every)
    first = every[0][0]
    how = "O_DIRECT" if first["direct"] else "buffered, through the kernel's page cache"
    print(f"{len(every)} tables, {first['windows']} windows of {first['context']} tokens, {first['engine']}, {how}:")
    print("losses from flash equal those from RAM to the last bit; reads equal the simulated misses behind each cache")


if __name__ == "__main__":
    sys.exit(main())
