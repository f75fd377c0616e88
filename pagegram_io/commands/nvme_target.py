"""What ``nvme`` finds out about its target before it reads: would this be a measurement of a device?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pagegram_io.layout import Window
    from pagegram_io.table_file import TableHeader


def inspect_target(values: dict[str, Any], windows: tuple[Window, ...] = ()) -> tuple[int, dict[str, Any], list[str]]:
    """Refuse a target that would not be measured; where page 0 lies, what the target is, and notes.

    windows: those of a checkpoint's own files, which are read in place of one target. Notes are for when nothing else
    is in the way: beside the one line of an error they would only hide it.
    """
    from pagegram_io import doctor
    from pagegram_io.device import target_kind

    path = windows[0].file if windows else values["target"]
    kind = "files" if windows else target_kind(path)
    base, notes = values["offset"] or 0, list[str]()
    if kind == "file":
        base = _inspect_file(values, notes)
    for window in windows:  # what lies between them is not read
        _refuse_holes(values, window.file, window.byte, window.byte + window.page_count * values["page_bytes"])
    for file in dict.fromkeys(window.file for window in windows):
        _refuse_memory(values, file)
    filesystem = _refuse_memory(values, path)
    disks = {os.stat(window.file).st_dev for window in windows}
    if len(disks) > 1:
        notes.append(f"the files lie on {len(disks)} file systems; the records describe that of {path}")
    if kind == "block device" and doctor.is_in_use(path):
        notes.append(f"{path} is in use (mounted or held); it is only read, but others' reads and writes share it")
    device = doctor.block_device_of(path)
    about = {
        "target_kind": kind,
        "model": values["model"] if windows else None,  # whose files they are
        "filesystem": filesystem,
        "device_model": device.model if device else None,
        "logical_block_bytes": device.logical_block_bytes if device else None,
        "scheduler": device.scheduler if device else None,
        "rotational": device.rotational if device else None,
        "poll_queues": device.poll_queues if device else None,
        "nr_requests": device.nr_requests if device else None,
        "allow_holes": values["allow_holes"],
    }
    return base, about, notes


def _refuse_memory(values: dict[str, Any], path: str) -> str | None:
    """The file system that a path lies on, which has a device behind it."""
    from pagegram_io import doctor

    filesystem = doctor.filesystem_of(path)
    if filesystem in doctor.MEMORY_FILE_SYSTEMS and not values["buffered"]:  # newer kernels let O_DIRECT pass there
        raise click.ClickException(
            f"{path}: lies in memory ({filesystem}), with no device behind it; name a path on a disk, or insist with "
            "--buffered"
        )
    return filesystem


def _inspect_file(values: dict[str, Any], notes: list[str]) -> int:
    """Where page 0 of a file lies: any can be read; a table file says where its pages begin, and ends."""
    from pagegram_io import table_file
    from pagegram_io.errors import FormatError

    path, header = values["target"], None
    base: int = values["offset"] or 0
    try:
        header = table_file.read_header(path)
    except FormatError as error:
        if path.endswith(".safetensors"):
            notes.append(f"not read as a table file: {error}")
    if header is not None and values["offset"] is None:
        base = header.data_byte
        values["size"] = min(values["size"] or 2**62, header.page_count * header.page_bytes)
    if values["verify"]:
        _refuse_uncheckable(values, header)
    _refuse_holes(values, path, base, base + values["size"] if values["size"] else 2**62)
    return base


def _refuse_holes(values: dict[str, Any], path: str, begin: int, end: int) -> None:
    from pagegram_io import doctor

    hole = None if values["allow_holes"] else doctor.holes_in(path, begin, end)
    if hole is not None:
        raise click.ClickException(
            f"{path}: byte {hole:,} is a hole or was never written; reading it does not touch the device and would "
            "look far too fast. Make a dense file with pagegram-io mkfile, or insist with --allow-holes"
        )


def _refuse_uncheckable(values: dict[str, Any], header: TableHeader | None) -> None:
    """--verify compares a page with its own number and checksum, so both must be in it, and counted from its start."""
    if header is None:
        why = "is not a table file, so its pages cannot be checked"
    elif not header.sealed:
        why = "holds rows that fill its pages, and the checks of these lie apart from them"
    elif values["offset"] is not None:
        why = "numbers its pages from its own first one, not from an --offset"
    elif values["page_bytes"] != header.page_bytes:
        why = f"has pages of {header.page_bytes:,} bytes, not --page-size {values['page_bytes']}"
    else:
        return
    raise click.UsageError(f"{values['target']} {why}; leave out --verify")
