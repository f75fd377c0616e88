"""What runs inside the virtual machine: read every namespace in every way, and print what happened as JSON.

The images hold the sealed pages of seed 1, 2, 3 (by namespace), so every byte can be checked here.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from typing import Any

import numpy as np

from pagegram_io.native_reader import Reader, aligned_bytes, fill_pages

PAGES = int(sys.argv[1])


def image_pages(seed: int) -> np.ndarray:
    memory = aligned_bytes(PAGES * 4096)
    fill_pages(memory, 0, 4096, seed)
    return memory


def read_namespace(path: str, seed: int, *, page_bytes: int = 4096, **options: Any) -> dict[str, Any]:
    """Every page once in random order, then the measuring face; counts of what came out."""
    count = PAGES * 4096 // page_bytes
    wanted = image_pages(seed).reshape(count, page_bytes)
    pages = np.random.default_rng(seed).permutation(count)[:4096]
    memory = aligned_bytes(pages.size * page_bytes)
    with Reader(path, depth=32, page_bytes=page_bytes, **options) as reader:
        info = reader.info()
        status = reader.read(pages, memory)
        data = memory.reshape(pages.size, page_bytes)
        good = status == page_bytes
        stats = reader.stats()
        reader.reset()
        started = reader.pump(pages)
        left = reader.drain()
        again, histogram = reader.stats(), int(reader.histogram().sum())
        polled = poll_some(reader, page_bytes)
        return {
            "engine": info.engine, "direct": info.direct, "lba_bytes": info.lba_bytes, "page_count": info.page_count,
            "ring_flags": info.ring_flags, "fixed_file": info.fixed_file, "fixed_buffers": info.fixed_buffers,
            "reads": stats.reads, "retries": stats.retries, "errors_enodata": stats.errors_enodata,
            "errors_eio": stats.errors_eio, "errors_other": stats.errors_other, "errors": stats.errors,
            "first_error_status": stats.first_error_status, "first_error_byte": stats.first_error_byte,
            "good": int(good.sum()), "right": bool(np.array_equal(data[good], wanted[pages[good]])),
            "bad": {str(int(page)): int(code) for page, code in zip(pages[~good], status[~good], strict=True)},
            "pumped": started, "left": left, "pumped_reads": again.reads, "pumped_errors": again.errors,
            "histogram": histogram, "polled": polled,
        }  # fmt: skip


def poll_some(reader: Reader, page_bytes: int) -> list[int]:
    """Statuses of eight reads through submit and poll."""
    memory = aligned_bytes(8 * 4096).reshape(-1, page_bytes)[: 8 if page_bytes == 4096 else 1]
    count = memory.shape[0]
    reader.submit(np.arange(count), memory, np.arange(count))
    ended: list[tuple[int, int]] = []
    until = time.monotonic() + 20
    while len(ended) < count and time.monotonic() < until:
        ended += reader.poll()
    return [status for _, status in sorted(ended)]


def attempt(what: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
    try:
        return dict(what(*arguments, **options))
    except Exception as error:
        return {"raised": type(error).__name__, "errno": getattr(error, "errno", None), "text": str(error)}


def polled_on_a_file(path: str) -> dict[str, Any]:
    """IOPOLL where the file system has no polling: the first completions must say so."""
    memory = aligned_bytes(4 * 4096)
    with Reader(path, engine="io_uring", depth=4, flags=("iopoll",)) as reader:
        status = reader.read(np.arange(4), memory)
        return {"status": status.tolist(), "first": reader.stats().first_error_status}


def main() -> None:
    out: dict[str, Any] = {"kernel": os.uname().release}
    ways: list[tuple[str, str, int, dict[str, Any]]] = [
        ("block", "/dev/nvme0n1", 1, {"engine": "io_uring"}),
        ("block_psync", "/dev/nvme0n1", 1, {"engine": "psync"}),
        ("block_iopoll", "/dev/nvme0n1", 1, {"engine": "io_uring", "flags": ("iopoll",)}),
        ("block_iopoll_sqpoll", "/dev/nvme0n1", 1, {"engine": "io_uring", "flags": ("iopoll", "sqpoll")}),
        ("block_512", "/dev/nvme0n1", 1, {"engine": "io_uring", "page_bytes": 512}),
        ("passthrough", "/dev/ng0n1", 1, {"engine": "nvme"}),
        ("passthrough_auto", "/dev/ng0n1", 1, {"engine": "auto"}),
        ("passthrough_iopoll", "/dev/ng0n1", 1, {"engine": "nvme", "flags": ("iopoll",)}),
        ("passthrough_512", "/dev/ng0n1", 1, {"engine": "nvme", "page_bytes": 512}),
        ("passthrough_16k", "/dev/ng0n1", 1, {"engine": "nvme", "page_bytes": 16384}),
        ("block_4kn", "/dev/nvme0n2", 2, {"engine": "io_uring"}),
        ("block_4kn_512", "/dev/nvme0n2", 2, {"engine": "io_uring", "page_bytes": 512}),
        ("passthrough_4kn", "/dev/ng0n2", 2, {"engine": "nvme"}),
        ("passthrough_4kn_512", "/dev/ng0n2", 2, {"engine": "nvme", "page_bytes": 512}),
        ("medium", "/dev/nvme0n3", 3, {"engine": "io_uring"}),
        ("medium_psync", "/dev/nvme0n3", 3, {"engine": "psync"}),
        ("medium_passthrough", "/dev/ng0n3", 3, {"engine": "nvme"}),
        ("character_io_uring", "/dev/ng0n1", 1, {"engine": "io_uring"}),
        ("block_nvme", "/dev/nvme0n1", 1, {"engine": "nvme"}),
        ("controller", "/dev/nvme0", 1, {"engine": "nvme"}),
    ]
    for name, path, seed, options in ways:
        if options.get("page_bytes", 4096) == 4096 and options["engine"] != "psync":
            options["flags"] = (*options.get("flags", ()), "verify")
        out[name] = attempt(read_namespace, path, seed, **options)
        print(name, file=sys.stderr)
    out["iopoll_file"] = attempt(polled_on_a_file, sys.executable)
    out["EOPNOTSUPP"], out["ENODATA"] = errno.EOPNOTSUPP, errno.ENODATA
    print(json.dumps(out))


if __name__ == "__main__":
    main()
