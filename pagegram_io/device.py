"""Page trace x device -> records: reads at a held depth, uniform or as a table of a given layout would cause them."""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pagegram_io import native_reader
from pagegram_io.layout import Layout, Window
from pagegram_io.native_reader import NEVER, Reader, ReaderStats
from pagegram_io.records import SCHEMA, provenance
from pagegram_io.tokens import Stream
from pagegram_io.workload import Feeder, Replay, Uniform, Work

SLICE_NS = 50_000_000  # a pump returns at least this often, so that Ctrl-C and the seconds are noticed
ZERO_PROBE_PAGES = 1000
ZERO_SHARE_MAX = 0.01
BUSY_SHARE = 0.95


@dataclass(frozen=True)
class DeviceJob:
    """One measured run. Without a layout the reads are uniform over the span. Times in seconds, sizes in bytes.

    With ``windows`` the pages are those of a checkpoint's own files, and ``path`` is what they are called together.
    """

    path: str
    depth: int = 64
    engine: str = "auto"
    flags: tuple[str, ...] = ()
    page_bytes: int = 4096
    base_byte: int = 0
    span_bytes: int = 0
    layout: Layout | None = None
    cache_pages: int = 0
    cache_bytes: int = 0
    warm_tokens: int = 0  # of the stream, which fill the cache first, without a read
    decode: bool = False
    batch: int = 1
    runtime: float = 10.0
    ramp: float = 1.0
    limit: int | None = None  # reads of a uniform run, tokens of a layout
    jobs: int = 1
    max_errors: int = 100
    seed: int = 0
    wrap: bool = False
    percentiles: tuple[float, ...] = ()  # of latencies, beside 50, 90, 99 and 99.9
    windows: tuple[Window, ...] = ()

    @property
    def disk_path(self) -> str:
        """A path on the device that is read."""
        return self.windows[0].file if self.windows else self.path

    def open(self, depth: int, flags: tuple[str, ...] | None = None) -> Reader:
        """A reader of the job's target, with the job's flags or others; of the thread that calls."""
        return Reader(
            self.path,
            depth=depth,
            engine=self.engine,
            page_bytes=self.page_bytes,
            base_byte=self.base_byte,
            span_bytes=self.span_bytes,
            flags=self.flags if flags is None else flags,
            windows=self.windows,
        )


@dataclass
class Tally:
    """What one thread did in the measured part of its run."""

    stats: ReaderStats | None = None
    histogram: np.ndarray | None = None
    tokens: int = 0
    step_times_ns: list[np.ndarray] = field(default_factory=list)
    seconds: float = 0.0
    ramp_seconds: float = 0.0  # before the measured part
    cpu_seconds: float = 0.0
    reads_by_second: list[int] = field(default_factory=list)
    info: native_reader.ReaderInfo | None = None
    error: BaseException | None = None


class Worker(threading.Thread):
    """One ring on one thread: ramp, measure, drain. The reader is opened here, since it belongs to its thread."""

    def __init__(self, job: DeviceJob, depth: int, feeder: Feeder, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.job, self.depth, self.feeder, self.stop = job, depth, feeder, stop
        self.tally = Tally()
        self.begun = False

    def run(self) -> None:
        try:
            job = self.job
            with job.open(self.depth) as reader:
                self.tally.info = reader.info()
                started, cpu = time.monotonic(), _thread_cpu()
                ramp = None
                if job.ramp and job.limit is None:
                    self._loop(reader, job.ramp)
                    if not self.stop.is_set():  # else the ramp is all there will be, and is kept
                        self._count(reader, started, cpu)
                        ramp, self.tally = self.tally, Tally(info=self.tally.info, ramp_seconds=job.ramp)
                        reader.reset()
                        started, cpu = time.monotonic(), _thread_cpu()
                self._loop(reader, None if job.limit is not None else job.runtime)
                # A device that hangs must not keep us: what has not come back by then is left out.
                patience = 400_000_000 if self.stop.is_set() else 30_000_000_000
                reader.drain(deadline_ns=native_reader.clock_ns() + patience)
                self._count(reader, started, cpu)
                if ramp is not None and self.stop.is_set() and not reader.stats().reads:
                    self.tally = ramp  # stopped before a read of the measured part came back
        except BaseException as error:
            self.tally.error = error
            self.stop.set()

    def _count(self, reader: Reader, started: float, cpu: float) -> None:
        self.tally.seconds = time.monotonic() - started
        self.tally.cpu_seconds = _thread_cpu() - cpu
        self.tally.stats, self.tally.histogram = reader.stats(), reader.histogram()

    def _loop(self, reader: Reader, seconds: float | None) -> None:
        begin_ns = native_reader.clock_ns()
        end_ns = NEVER if seconds is None else begin_ns + int(seconds * 1e9)
        while not self.stop.is_set() and native_reader.clock_ns() < end_ns:
            work = self.feeder.next()
            if work is None or not self._do(reader, work, begin_ns, end_ns):
                return

    def _do(self, reader: Reader, work: Work, begin_ns: int, end_ns: int) -> bool:
        """One batch of work; False once enough reads have failed or the time is over."""
        per_end = work.tokens // len(work.ends)
        done = 0  # reads started, or steps done
        total = len(work.ends) if self.job.decode else len(work.pages)
        while done < total:
            slice_ns = min(end_ns, native_reader.clock_ns() + SLICE_NS)
            if self.job.decode:
                base = int(work.ends[done - 1]) if done else 0
                ends = work.ends[done:] - np.uint64(base)
                times = reader.steps(work.pages[base:], ends, deadline_ns=slice_ns, max_errors=self.job.max_errors)
                self.tally.step_times_ns.append(times)
                done += len(times)
            else:
                done += reader.pump(work.pages[done:], deadline_ns=slice_ns, max_errors=self.job.max_errors)
            self.begun = self.begun or done > 0
            self._note_second(reader, begin_ns)
            now = native_reader.clock_ns()
            failed = reader.stats().errors > self.job.max_errors
            if done < total and (self.stop.is_set() or now >= end_ns or failed):
                whole = done if self.job.decode else int(np.searchsorted(work.ends, done, side="right"))
                self.tally.tokens += whole * per_end
                return False
        self.tally.tokens += work.tokens
        return True

    def _note_second(self, reader: Reader, begin_ns: int) -> None:
        """Keeps reads_by_second[s]: reads ended by the end of second s."""
        second = (native_reader.clock_ns() - begin_ns) // 1_000_000_000
        by_second = self.tally.reads_by_second
        while len(by_second) < second:
            by_second.append(reader.stats().reads)


def _thread_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_utime + used.ru_stime


def _process_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def target_kind(path: str) -> str:
    """``file``, ``block device`` or ``NVMe character device``. OSError, with the path, for anything else."""
    mode = os.stat(path).st_mode
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISBLK(mode):
        return "block device"
    if stat.S_ISCHR(mode):
        return "NVMe character device"
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "is neither a file nor a device", path)


def probe_zeros(job: DeviceJob) -> float:
    """Share of random pages that hold only zeros: blocks that were never written do not reach flash."""
    with job.open(64, tuple(flag for flag in job.flags if flag == "buffered")) as reader:
        count = min(ZERO_PROBE_PAGES, reader.info().page_count)
        pages = np.random.default_rng(job.seed).integers(reader.info().page_count, size=count, dtype=np.uint64)
        memory = native_reader.aligned_bytes(count * job.page_bytes)
        status = reader.read(pages, memory)
    lines = memory.reshape(count, job.page_bytes)[status > 0]
    return float((~lines.any(axis=1)).mean()) if len(lines) else 0.0


def span_pages(job: DeviceJob) -> int:
    """Pages of the target that the job may read. Opens it, and so finds out whether it can be read at all.

    OSError ENOTSUP for polled completions that the device has not: only a read shows it.
    """
    with job.open(1) as reader:
        if "iopoll" in job.flags:
            status = reader.read(np.zeros(1, np.uint64), native_reader.aligned_bytes(job.page_bytes))
            if status[0] == -errno.EOPNOTSUPP:
                text = "completions cannot be polled for here (its driver has no poll queues); leave out --iopoll"
                raise OSError(errno.ENOTSUP, text, job.path)
        return reader.info().page_count


def run(
    job: DeviceJob,
    *,
    stream: Stream | None = None,
    stop: threading.Event | None = None,
    tick: Callable[[float], None] | None = None,
    zero_share: float | None = None,
    environment: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Measure once; a record of kind "nvme", or None when it was stopped before the first read.

    ``stop`` ends the run early, with what it has; ``tick`` is told the seconds since it was last told.
    """
    stop = stop or threading.Event()
    page_count = span_pages(job)
    if job.layout is not None and job.layout.page_count > page_count and not job.wrap:
        raise ValueError(
            f"{job.layout.label} has {job.layout.page_count:,} pages and {job.path} {page_count:,} from its offset; "
            "use a smaller --table, a larger target, or --wrap"
        )
    source: Uniform | Replay = Uniform(job, page_count)
    if job.layout is not None:
        if stream is None:
            raise ValueError("a layout is read with the pages of a token stream; give one")
        source = Replay(job, job.layout, stream, page_count)
    feeder = Feeder(source, job.limit)
    threads = min(job.jobs, job.depth)
    depths = [job.depth // threads + (i < job.depth % threads) for i in range(threads)]
    workers = [Worker(job, depth, feeder, stop) for depth in depths]
    before, cpu = read_diskstats(job.disk_path), _process_cpu()
    started = time.monotonic()
    for worker in workers:
        worker.start()
    try:
        _await(workers, tick)
    except BaseException:  # Ctrl-C where nobody turned it into stop, as in a notebook: no thread may go on reading
        stop.set()
        _await(workers, None)
        raise
    disk = diskstats_since(before, read_diskstats(job.disk_path), time.monotonic() - started)
    cpu = _process_cpu() - cpu
    for worker in workers:
        if worker.tally.error is not None:
            raise worker.tally.error
    if stop.is_set() and not any(worker.begun for worker in workers):
        return None
    tallies = [worker.tally for worker in workers]
    return make_record(job, tallies, feeder.source.loops, page_count, stream) | disk | {
        "zero_page_fraction": zero_share, "interrupted": stop.is_set(), **(environment or {}),
    }  # fmt: skip


def _await(workers: list[Worker], tick: Callable[[float], None] | None) -> None:
    told = time.monotonic()
    for worker in workers:
        while worker.is_alive():
            worker.join(0.05)
            if tick:
                tick(time.monotonic() - told)
                told = time.monotonic()


def percentile(histogram: np.ndarray, share: float) -> int:
    """The latency in ns below which a share of the reads lies: the middle of its bucket. 0 for no reads."""
    total = int(histogram.sum())
    if not total:
        return 0
    lows = native_reader.histogram_lows()
    at = int(np.searchsorted(np.cumsum(histogram), max(1, int(np.ceil(share * total)))))
    high = int(lows[at + 1]) if at + 1 < len(lows) else 2 * int(lows[at])
    return (int(lows[at]) + high - 1) // 2


def make_record(
    job: DeviceJob, tallies: list[Tally], loops: int, page_count: int, stream: Stream | None
) -> dict[str, Any]:
    """One flat record of all threads together."""
    stats = [t.stats for t in tallies if t.stats is not None]
    histogram = np.sum([t.histogram for t in tallies if t.histogram is not None], axis=0)
    info = tallies[0].info
    assert info is not None
    seconds = max(t.seconds for t in tallies)
    reads = sum(s.reads for s in stats)
    tokens = sum(t.tokens for t in tallies)
    errors = {name: sum(getattr(s, name) for s in stats) for name in (
        "errors_eio", "errors_enodata", "errors_short", "errors_corrupt", "errors_other")}  # fmt: skip
    failed = [s for s in stats if s.first_error_byte != NEVER]
    first = min(failed, key=lambda s: (s.first_error_file, s.first_error_byte), default=None)
    files = list(dict.fromkeys(window.file for window in job.windows))
    latency_sum = sum(s.latency_sum_ns for s in stats)
    depth = sum(s.depth_ns for s in stats) / 1e9 / seconds if seconds else 0.0
    busy = max(t.cpu_seconds / t.seconds if t.seconds else 0.0 for t in tallies)
    layout = job.layout
    record: dict[str, Any] = {
        "kind": "nvme", "schema": SCHEMA, **provenance(),
        "target": job.path, "engine": info.engine, "engine_reason": info.why, "direct": info.direct,
        "ring_flags": ",".join(info.ring_flags), "fixed_buffers": info.fixed_buffers, "fixed_file": info.fixed_file,
        "depth": job.depth, "jobs": len(tallies), "mode": "decode" if job.decode else "throughput",
        "batch": job.batch if job.decode else None, "page_bytes": job.page_bytes, "base_byte": job.base_byte,
        "span_bytes": page_count * job.page_bytes,
        "layout": layout.name if layout else "uniform", "slots": layout.slots if layout else None,
        "table_params": layout.table_params if layout else None, "row_format": layout.row_format if layout else None,
        "table_pages": layout.page_count if layout else None, "wrapped": job.wrap,
        "cache_bytes": job.cache_bytes, "cache_pages": job.cache_pages,
        "warm_tokens": job.warm_tokens if job.cache_pages else 0, "seed": job.seed,
        "stream": stream.name if stream is not None and layout else None,
        "stream_sha256": stream.sha256 if stream is not None and layout else None,
        "tokens": tokens if layout else None, "loops": loops, "reads": reads, **errors,
        "first_error_file": files[first.first_error_file] if first and files else None,
        "first_error_byte": first.first_error_byte if first else None,
        "first_error_status": first.first_error_status if first else None,
        "retries": sum(s.retries for s in stats),
        "seconds": seconds, "ramp_seconds": max(t.ramp_seconds for t in tallies),
        "iops": reads / seconds if seconds else 0.0,
        "lookups_per_second": tokens / seconds if layout and seconds else None,
        "bytes_per_second": sum(s.bytes for s in stats) / seconds if seconds else 0.0,
        "iops_by_second": _iops_by_second(tallies),
        "latency_mean_ns": round(latency_sum / reads) if reads else 0,
        "latency_min_ns": min((s.latency_min_ns for s in stats if s.latency_min_ns != NEVER), default=0),
        **{latency_key(p): percentile(histogram, p / 100) for p in (*PERCENTILES, *job.percentiles)},
        "latency_max_ns": max(s.latency_max_ns for s in stats), "latency_error_share": 1 / 128,
        "clock": "each" if "clock_each" in job.flags else "batch",
        "cpu_ns_per_read": round(sum(t.cpu_seconds for t in tallies) * 1e9 / reads) if reads else 0,
        "waits": sum(s.waits for s in stats), "depth_sustained": depth,
        "littles_law_ratio": depth * seconds * 1e9 / latency_sum if latency_sum else 0.0,
        "limited_by": "cpu" if busy > BUSY_SHARE else "device",
    }  # fmt: skip
    return record | _step_fields(tallies, seconds) if job.decode else record


PERCENTILES = (50, 90, 99, 99.9)


def _percentile_name(percent: float) -> str:
    """p50, p999 of 99.9, p9_9 of 9.9: the point is left out behind two digits."""
    text = f"{percent:.12g}"
    return "p" + (text.replace(".", "") if percent >= 10 else text.replace(".", "_"))


def latency_key(percent: float) -> str:
    """A record's key for a percentile of the latencies."""
    return f"latency_{_percentile_name(percent)}_ns"


def _iops_by_second(tallies: list[Tally]) -> list[int]:
    length = min(len(t.reads_by_second) for t in tallies)
    totals = [sum(t.reads_by_second[s] for t in tallies) for s in range(length)]
    return [total - before for total, before in zip(totals, [0, *totals], strict=False)]


def _step_fields(tallies: list[Tally], seconds: float) -> dict[str, Any]:
    """The distribution of step times, exact (they are kept whole)."""
    times = np.concatenate([part for t in tallies for part in t.step_times_ns] or [np.empty(0, np.uint64)])
    fields: dict[str, Any] = {"steps": len(times), "steps_per_second": len(times) / seconds if seconds else 0.0}
    fields["reads_per_step"] = sum(t.stats.reads for t in tallies if t.stats) / len(times) if len(times) else 0.0
    fields["step_mean_ns"] = round(float(times.mean())) if len(times) else 0
    for percent in PERCENTILES:
        value = int(np.quantile(times, percent / 100, method="inverted_cdf")) if len(times) else 0
        fields[f"step_{_percentile_name(percent)}_ns"] = value
    fields["step_max_ns"] = int(times.max()) if len(times) else 0
    return fields


def read_diskstats(path: str) -> tuple[int, int] | None:
    """(reads completed, ms that they took together) of the block device behind a path; None where there is none."""
    try:
        about = os.stat(path)
        device = about.st_rdev if stat.S_ISBLK(about.st_mode) else about.st_dev
        with open("/proc/diskstats") as lines:
            for line in lines:
                words = line.split()
                if (int(words[0]), int(words[1])) == (os.major(device), os.minor(device)):
                    return int(words[3]), int(words[6])
    except (OSError, ValueError, IndexError):
        return None
    return None


def diskstats_since(before: tuple[int, int] | None, after: tuple[int, int] | None, seconds: float) -> dict[str, Any]:
    """The kernel's own view of the whole run, ramp included: reads completed, and the depth it saw."""
    if before is None or after is None or not seconds:
        return {"diskstats_reads": None, "diskstats_depth": None}
    return {"diskstats_reads": after[0] - before[0], "diskstats_depth": (after[1] - before[1]) / 1000 / seconds}
