"""The device reader on an NVMe drive: an emulated one, in a virtual machine that harness/vm.py boots once."""

from __future__ import annotations

import errno
import hashlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import vm
from harness.targets import write_dense

pytestmark = [pytest.mark.qemu, pytest.mark.slow]

PAGES = 2048  # 8 MiB a namespace
BAD_PAGES = (77, 1500)
ROOT = Path(__file__).parents[1]
WHOLE = ("block", "block_psync", "block_iopoll", "block_iopoll_sqpoll", "block_512")
PASSTHROUGH = ("passthrough", "passthrough_auto", "passthrough_iopoll", "passthrough_512", "passthrough_16k")
FOURK = ("block_4kn", "passthrough_4kn")


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What vm_guest.py saw."""
    lacking = vm.missing_programs()
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    folder = tmp_path_factory.mktemp("vm")
    kept = ROOT / "build" / "vm"
    try:
        vm.build(kept)
    except vm.CannotBuild as reason:
        pytest.skip(str(reason))
    images = [write_dense(folder / f"image{seed}", pages=PAGES, seed=seed) for seed in (1, 2, 3)]
    namespaces = [
        vm.Namespace(images[0]),
        vm.Namespace(images[1], block_bytes=4096),
        vm.Namespace(images[2], bad_sectors=[page * 8 + 3 for page in BAD_PAGES]),
    ]
    paths = f"{ROOT / 'tests'}:{ROOT}"
    words = [sys.executable, "-B", str(ROOT / "tests" / "harness" / "vm_guest.py"), str(PAGES)]
    script = folder / "guest.sh"
    script.write_text(f"cd /\nexport HOME=/ PYTHONPATH={shlex.quote(paths)}\nexec {shlex.join(words)}\n")
    before = [hashlib.sha256(image.read_bytes()).digest() for image in images]
    try:
        printed, console = vm.run(kept, script, namespaces, folder / "out", timeout_s=400)
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"the virtual machine did not finish:\n{late.stdout!r}"[-4000:])
    assert "guest-exit 0" in console, console[-4000:]
    # C20: nothing has written to the drive.
    assert [hashlib.sha256(image.read_bytes()).digest() for image in images] == before
    answer = json.loads(printed)
    assert isinstance(answer, dict)
    return answer


def check_whole(seen: dict[str, Any], count: int) -> None:
    assert "raised" not in seen, seen
    assert (seen["reads"], seen["errors"], seen["retries"], seen["good"]) == (count, 0, 0, count)
    assert seen["right"] and seen["direct"] and seen["bad"] == {}
    assert (seen["pumped"], seen["left"], seen["pumped_reads"], seen["pumped_errors"]) == (count, 0, count, 0)
    assert seen["histogram"] == count


@pytest.mark.parametrize("way", WHOLE)
def test_block_node(drive: dict[str, Any], way: str) -> None:
    seen = drive[way]
    check_whole(seen, 4096 if way == "block_512" else PAGES)
    assert seen["engine"] == ("psync" if way == "block_psync" else "io_uring")
    assert ("IOPOLL" in seen["ring_flags"]) == ("iopoll" in way)
    assert ("SQPOLL" in seen["ring_flags"]) == ("sqpoll" in way)
    assert seen["fixed_file"] == seen["fixed_buffers"] == (way != "block_psync")
    assert seen["polled"] == ([512] if way == "block_512" else [4096] * 8)


@pytest.mark.parametrize("way", PASSTHROUGH)
def test_passthrough(drive: dict[str, Any], way: str) -> None:
    seen = drive[way]
    page_bytes = {"passthrough_512": 512, "passthrough_16k": 16384}.get(way, 4096)
    check_whole(seen, min(4096, PAGES * 4096 // page_bytes))
    assert (seen["engine"], seen["lba_bytes"], seen["page_count"]) == ("nvme", 512, PAGES * 4096 // page_bytes)
    assert {"SQE128", "CQE32"} <= set(seen["ring_flags"])
    assert set(seen["polled"]) == {page_bytes}


@pytest.mark.parametrize("way", FOURK)
def test_4kn_namespace(drive: dict[str, Any], way: str) -> None:
    check_whole(drive[way], PAGES)
    assert drive[way]["lba_bytes"] == (4096 if way == "passthrough_4kn" else 0)
    refused = drive[way + "_512"]
    assert refused["raised"] == "ValueError"
    assert "blocks of 4096 bytes are larger than a page of 512" in refused["text"]


@pytest.mark.parametrize("way", ["medium", "medium_psync", "medium_passthrough"])
def test_medium_error(drive: dict[str, Any], way: str) -> None:
    """Two bad sectors cost two pages, by their kind; every other byte is right."""
    seen = drive[way]
    assert "raised" not in seen, seen
    assert sorted(int(page) for page in seen["bad"]) == list(BAD_PAGES)
    assert (seen["good"], seen["errors"], seen["right"]) == (PAGES - 2, 2, True)
    assert (seen["pumped_reads"], seen["pumped_errors"], seen["left"]) == (PAGES - 2, 2, 0)
    assert seen["first_error_byte"] in [page * 4096 for page in BAD_PAGES]
    if way == "medium_passthrough":  # status type 2 (media), code 0x81: unrecovered read error
        assert {(-20000 - code) & 0x7FF for code in seen["bad"].values()} == {0x281}
        assert seen["errors_other"] == 2
    else:
        assert set(seen["bad"].values()) == {-errno.ENODATA} and seen["errors_enodata"] == 2


def test_nodes_and_engines_that_do_not_fit(drive: dict[str, Any]) -> None:
    for way, text in (
        ("character_io_uring", "a character device is read with engine nvme"),
        ("block_nvme", "engine nvme reads an NVMe character device"),
        ("controller", "not an NVMe namespace that can be identified"),
    ):
        assert drive[way].get("raised") in ("ValueError", "OSError") and text in drive[way]["text"], drive[way]


def test_polling_a_file_that_cannot_be_polled(drive: dict[str, Any]) -> None:
    seen = drive["iopoll_file"]
    if "raised" not in seen:
        assert seen["status"] == [-errno.EOPNOTSUPP] * 4 and seen["first"] == -errno.EOPNOTSUPP
    else:
        assert "no O_DIRECT" in seen["text"]
