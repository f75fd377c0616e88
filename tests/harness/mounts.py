"""A mounted fault_fs.py, and a loop device with blocks of a given size."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HARNESS = Path(__file__).parent


@dataclass(frozen=True)
class FaultMount:
    """The mounted file, and how to ask and tell the program behind it."""

    file: Path
    counts_file: Path
    control: Path

    def counts(self) -> dict[int, int]:
        """Reads that reached each page so far."""
        descriptor = os.open(self.counts_file, os.O_RDONLY)
        try:
            return {int(page): count for page, count in json.loads(os.pread(descriptor, 1 << 24, 0)).items()}
        finally:
            os.close(descriptor)

    def truncate_to(self, size_bytes: int) -> None:
        partial = self.control.with_name("control.partial")
        partial.write_text(json.dumps({"truncate_to": size_bytes}))
        partial.rename(self.control)


@contextlib.contextmanager
def faulty_file(
    folder: Path,
    faults: dict[int, dict[str, Any]],
    *,
    pages: int,
    page_bytes: int = 4096,
    seed: int = 1,
    tail_bytes: int = 0,
) -> Iterator[FaultMount]:
    """Mount a file of sealed pages with faults; unmounted at the end, even if reads are stuck."""
    pytest.importorskip("mfusepy", reason="mfusepy is not installed", exc_type=(ImportError, OSError))
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or shutil.which("fusermount3") is None:
        pytest.skip("FUSE needs /dev/fuse and fusermount3")
    mount_point, plan = folder / "mounted", folder / "faults.json"
    mount_point.mkdir()
    plan.write_text(
        json.dumps({"pages": pages, "page_bytes": page_bytes, "seed": seed, "tail_bytes": tail_bytes, "faults": faults})
    )
    log = (folder / "fuse.log").open("w")
    server = subprocess.Popen([sys.executable, str(HARNESS / "fault_fs.py"), mount_point, plan], stdout=log, stderr=log)
    try:
        file = mount_point / "f"
        until = time.monotonic() + 60
        while not file.exists():
            assert server.poll() is None, (folder / "fuse.log").read_text()
            assert time.monotonic() < until, "the FUSE server did not come up"
            time.sleep(0.02)
        yield FaultMount(file, mount_point / "counts", folder / "control")
    finally:
        subprocess.run(["fusermount3", "-u", "-z", mount_point], check=False)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


@contextlib.contextmanager
def loop_device(file: Path, *, block_bytes: int) -> Iterator[Path]:
    """A read-only block device over file with logical blocks of that size."""
    if os.geteuid() != 0:
        pytest.skip("loop devices need root")
    if shutil.which("losetup") is None or not Path("/dev/loop-control").exists():
        pytest.skip("no losetup or no /dev/loop-control")
    command = ["losetup", "--find", "--show", "--read-only", "--direct-io=on", "--sector-size", str(block_bytes), file]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"loop devices cannot be made here: {made.stderr.strip()}")
    device = Path(made.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
