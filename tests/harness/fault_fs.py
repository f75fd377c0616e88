"""A FUSE file system of one read-only file, ``f``, of sealed pages, whose reads go wrong as asked.

    python fault_fs.py MOUNT_POINT FAULTS.json

FAULTS.json: pages, page_bytes, seed, and faults by page number:

    {"fail": "EIO"}                every read of the page fails with that errno
    {"fail": "EAGAIN", "times": 2} only the first two do
    {"short_bytes": 1000}          every read delivers that many bytes; with "times", only the first ones
    {"delay_s": 0.05}              it takes that long, beside whatever else is wrong

The reads of each page are counted: reading the file ``counts`` gives them as JSON. ``{"truncate_to": BYTES}`` written
to the file ``control`` beside FAULTS.json (not in the mount) cuts the file's content while its size stays the same.
"""

from __future__ import annotations

import collections
import errno
import json
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

import mfusepy

from pagegram_io.native_reader import aligned_bytes, fill_pages


class FaultFiles(mfusepy.Operations):
    """``f`` with faults, and ``counts``."""

    use_ns = True

    def __init__(self, plan_path: Path) -> None:
        plan = json.loads(plan_path.read_text())
        self.page_bytes = int(plan["page_bytes"])
        self.faults: dict[int, dict[str, Any]] = {int(page): fault for page, fault in plan["faults"].items()}
        memory = aligned_bytes(int(plan["pages"]) * self.page_bytes)
        fill_pages(memory, 0, self.page_bytes, int(plan["seed"]))
        self.content = memory.tobytes() + b"\x5a" * int(plan.get("tail_bytes", 0))
        self.control = plan_path.with_name("control")
        self.lock = threading.Lock()
        self.counts: collections.Counter[int] = collections.Counter()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        if path not in ("/f", "/counts"):
            raise mfusepy.FuseOSError(errno.ENOENT)
        return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": len(self.content)}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", "f", "counts"]

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise mfusepy.FuseOSError(errno.EROFS)
        return 1

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        if path == "/counts":
            with self.lock:
                return json.dumps(self.counts).encode()[offset : offset + size]
        return self.read_page(size, offset)

    def read_page(self, size: int, offset: int) -> bytes:
        page = offset // self.page_bytes
        with self.lock:
            earlier = self.counts[page]
            self.counts[page] += 1
        fault = self.faults.get(page, {})
        time.sleep(fault.get("delay_s", 0))
        end = len(self.content)
        if self.control.exists():
            end = int(json.loads(self.control.read_text())["truncate_to"])
        if earlier < fault.get("times", sys.maxsize):
            if "fail" in fault:
                raise mfusepy.FuseOSError(getattr(errno, fault["fail"]))
            size = min(size, fault.get("short_bytes", size))
        return self.content[offset : min(offset + size, end)]


if __name__ == "__main__":
    options = {"foreground": True, "nothreads": False, "direct_io": True, "ro": True, "allow_other": False}
    mfusepy.FUSE(FaultFiles(Path(sys.argv[2])), sys.argv[1], **options)
