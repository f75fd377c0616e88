"""What ``nvme`` finds out about its target before it reads: would this be a measurement of a device?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pagegram_io.table_file import TableHeader


def inspect_target(values: dict[str, Any]) -> tuple[int, dict[str, Any], list[str]]:
    """Refuse a target that would not be measured; where page 0 lies, what the target is, and notes.

    Notes are for when nothing else is in the way: beside the one line of an error they would only hide it.
    """
    from pagegram_io import doctor, table_file
    from pagegram_io.device import target_kind
    from pagegram_io.errors import FormatError

    path = values["target"]
    kind = target_kind(path)
    base, notes = values["offset"] or 0, []
    if kind == "file":
        header = None
        try:  # any file can be read; a table file says where its pages begin
            header = table_file.read_header(path)
        except FormatError as error:
            if path.endswith(".safetensors"):
                notes.append(f"not read as a table file: {error}")
        if header is not None and values["offset"] is None:
            base = header.data_byte
            values["size"] = min(values["size"] or 2**62, header.page_count * header.page_bytes)
        if values["verify"]:
            _refuse_uncheckable(values, header)
        end = base + values["size"] if values["size"] else 2**62
        hole = None if values["allow_holes"] else doctor.holes_in(path, base, end)
        if hole is not None:
            raise click.ClickException(
                f"{path}: byte {hole:,} is a hole or was never written; reading it does not touch the device and would "
                "look far too fast. Make a dense file with pagegram-io mkfile, or insist with --allow-holes"
            )
    filesystem = doctor.filesystem_of(path)
    if filesystem in doctor.MEMORY_FILE_SYSTEMS and not values["buffered"]:  # newer kernels let O_DIRECT pass there
        raise click.ClickException(
            f"{path}: lies in memory ({filesystem}), with no device behind it; name a path on a disk, or insist with "
            "--buffered"
        )
    if kind == "block device" and doctor.is_in_use(path):
        notes.append(f"{path} is in use (mounted or held); it is only read, but others' reads and writes share it")
    device = doctor.block_device_of(path)
    about = {
        "target_kind": kind,
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
