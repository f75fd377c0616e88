"""``pagegram-io doctor``: what this machine can do, and the cure for what it cannot."""

from __future__ import annotations

import errno
import grp
import os
import resource
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pagegram_io.doctor import BlockDevice

EPILOG = """
Examples:

\b
  pagegram-io doctor
  pagegram-io doctor /dev/nvme0n1
  pagegram-io doctor --json table.safetensors
"""

DEPTHS = (64, 1024)
PAGE_BYTES = 4096


@dataclass(frozen=True)
class Line:
    """One finding: ok, missing (False), or nothing to judge (None). The cure is said where it is given."""

    ok: bool | None
    name: str
    text: str
    cure: str = ""


@click.command("doctor", epilog=EPILOG)
@click.argument("path", type=click.Path(readable=False), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one record as JSON instead of the lines.")
def command(path: str | None, as_json: bool) -> None:
    """What this machine, and PATH (a file, folder or device) on it, can do for `nvme`; the cure for what they cannot.

    Nothing is written, and PATH is opened for reading only. The exit status is 0 whatever is found.
    """
    from pagegram_io.commands.options import print_records
    from pagegram_io.records import SCHEMA, provenance

    if path is not None:
        os.stat(path)  # a path that is not there is a mistake, not a finding
    record: dict[str, Any] = {"kind": "doctor", "schema": SCHEMA, **provenance(), "target": path}
    lines = [*machine_lines(record), *uring_lines(record), *limit_lines(record)]
    if path is not None:
        lines += target_lines(record, path)
    if as_json:
        record["missing"] = ", ".join(line.name for line in lines if line.ok is False)
        print_records([record])
    else:
        _print_lines(lines)


def machine_lines(record: dict[str, Any]) -> list[Line]:
    """Kernel, CPU, memory."""
    from pagegram_io import doctor, native

    release = doctor.kernel()
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit())
    huge = doctor.chosen(doctor.first_line("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    record.update(isa=native.isa_best(), transparent_hugepage=huge or None)
    if version < (5, 6):
        kernel = Line(False, "kernel", release, "io_uring begins with Linux 5.6; update, or use --engine psync")
    elif version < (6, 1):
        kernel = Line(None, "kernel", f"{release}: io_uring works; from 6.1 on it costs less CPU a read")
    else:
        kernel = Line(True, "kernel", release)
    return [
        kernel,
        Line(True, "CPU", f"{record['cpu']}; instructions in use: {record['isa']}"),
        Line(None, "huge pages", huge or "not known"),
        Line(None, "disks", ", ".join(f"{disk.name} ({disk.model})" for disk in doctor.disks()) or "none"),
    ]


def uring_lines(record: dict[str, Any]) -> list[Line]:
    """io_uring: the reader's own attempt, the sysctl, the operations."""
    from pagegram_io import doctor
    from pagegram_io.native_reader import Reader

    disabled = doctor.first_number("/proc/sys/kernel/io_uring_disabled")
    record.update(io_uring_disabled=disabled, io_uring=False, ring_flags=None, fixed_buffers=None, fixed_file=None)
    record.update(io_uring_operations=None, io_uring_error=None, liburing_agrees=None)
    sysctl = "no such setting" if disabled is None else str(disabled)
    lines = [
        Line(not disabled, "io_uring_disabled", sysctl, "sudo sysctl kernel.io_uring_disabled=0" if disabled else "")
    ]
    descriptor = os.memfd_create("pagegram-io-doctor")  # a file in memory: the ring is what is tried, not a disk
    try:
        os.ftruncate(descriptor, DEPTHS[0] * PAGE_BYTES)
        name = f"/proc/self/fd/{descriptor}"
        with Reader(name, depth=DEPTHS[0], engine="io_uring", flags=("buffered",)) as reader:
            info = reader.info()
        operations = doctor.uring_operations()
    except (OSError, MemoryError, ValueError) as error:
        record["io_uring_error"] = getattr(error, "strerror", None) or str(error)
        return [Line(False, "io_uring", record["io_uring_error"], _uring_cure(error, disabled)), *lines]
    finally:
        os.close(descriptor)
    record.update(io_uring=True, ring_flags=",".join(info.ring_flags))
    record.update(fixed_buffers=info.fixed_buffers, fixed_file=info.fixed_file, io_uring_operations=len(operations))
    registered = [text for text, has in (("buffers", info.fixed_buffers), ("file", info.fixed_file)) if has]
    lines.insert(0, Line(True, "io_uring", f"works, registered: {', '.join(registered) or 'nothing'}"))
    lines.append(Line(True, "ring flags", ", ".join(info.ring_flags)))
    absent = [name for name, number in doctor.OPERATIONS.items() if number not in operations]
    text = f"{len(operations)} supported" + (f", without {', '.join(absent)}" if absent else "")
    cure = "NVMe passthrough (URING_CMD) begins with Linux 5.19" if absent else ""
    lines.append(Line(not absent, "io_uring operations", text, cure))
    return lines + _liburing_lines(record, operations)


def _uring_cure(error: Exception, disabled: int | None) -> str:
    number = getattr(error, "errno", None)
    if number == errno.EPERM and disabled:
        return "sudo sysctl kernel.io_uring_disabled=0, or --engine psync"
    if number in (errno.EPERM, errno.EACCES):
        return "a container's seccomp filter forbids it: run with a profile that allows io_uring, or --engine psync"
    if number == errno.ENOSYS:
        return "this kernel lacks it, or a sandbox hides it: Linux 5.6 or newer with CONFIG_IO_URING, or --engine psync"
    return "--engine psync reads without it"


def _liburing_lines(record: dict[str, Any], operations: frozenset[int]) -> list[Line]:
    from pagegram_io import doctor

    named = doctor.liburing_operations()
    if named is None:
        return []
    ours = {name for name, number in doctor.OPERATIONS.items() if number in operations}
    agrees = ours == named & set(doctor.OPERATIONS)
    record["liburing_agrees"] = agrees
    text = "sees the same operations" if agrees else f"sees other operations: {', '.join(sorted(named ^ ours))}"
    return [Line(agrees, "liburing (PyPI)", text, "" if agrees else "please report this, with the output of --json")]


def limit_lines(record: dict[str, Any]) -> list[Line]:
    """Locked memory and open files."""
    from pagegram_io import doctor
    from pagegram_io.sizes import format_bytes

    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    files, files_hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    exempt = doctor.may_lock_memory()
    endless = locked == resource.RLIM_INFINITY
    record.update(memlock_bytes=None if endless else locked, memlock_exempt=exempt, open_files=files)
    needs = [depth * PAGE_BYTES for depth in DEPTHS]
    text = "unlimited" if endless else format_bytes(locked)
    text += "; not applied to this process (CAP_IPC_LOCK)" if exempt and not endless else ""
    text += "; " + ", ".join(f"depth {d} needs {format_bytes(n)}" for d, n in zip(DEPTHS, needs, strict=True))
    enough = exempt or endless or locked >= needs[-1]
    cure = (
        "" if enough else "ulimit -l unlimited, or memlock in /etc/security/limits.conf; else buffers go unregistered"
    )
    ok = True if enough else (None if locked >= needs[0] else False)
    raised = f"ulimit -n {files_hard if files_hard > 0 else 1024}"
    return [
        Line(ok, "locked memory", text, cure),
        Line(files >= 64, "open files", "unlimited" if files < 0 else str(files), "" if files >= 64 else raised),
    ]


def target_lines(record: dict[str, Any], path: str) -> list[Line]:
    """The file, folder or device itself, and what it lies on."""
    from pagegram_io import doctor

    status = os.stat(path)
    kinds = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFBLK: "block device",
        stat.S_IFCHR: "character device",
    }
    kind = kinds.get(stat.S_IFMT(status.st_mode), "something that cannot be read at random")
    device = doctor.block_device_of(path)
    judged = kind in ("file", "folder") or (kind in kinds.values() and device is not None)
    record.update(target_kind=kind, target_bytes=None, filesystem=doctor.filesystem_of(path), readable=None)
    cure = "" if judged else "name a file, a folder, a block device such as /dev/nvme0n1, or /dev/ng0n1"
    lines = [Line(None if judged else False, "target", f"{click.format_filename(path)}: {kind}", cure)]
    if not judged:  # opening what is no disk may do things: a watchdog starts
        return lines
    if record["filesystem"]:
        lines.append(_filesystem_line(record["filesystem"]))
    lines += _device_lines(record, device)
    fault = _open_fault(path)
    record["readable"] = fault is None
    if fault is not None:
        return [*lines, Line(False, "permission", str(fault.strerror), _permission_cure(fault, status, kind))]
    lines.append(Line(True, "permission", "can be read"))
    if kind == "block device":
        record["in_use"] = doctor.is_in_use(path)
        text = "yes: it is only read, but others share it" if record["in_use"] else "no"
        lines.append(Line(None if record["in_use"] else True, "in use", text))
    if kind == "character device":
        return [*lines, _passthrough_line(record, path)]
    lines += _direct_lines(record, path, kind)
    if kind != "folder":
        lines.append(_size_line(record, path))
    if kind == "file" and record["target_bytes"] is not None:
        lines += _content_lines(record, path)
    return lines


def _passthrough_line(record: dict[str, Any], path: str) -> Line:
    """The engine `nvme` on a character node, by opening it."""
    from pagegram_io.native_reader import Reader

    try:
        with Reader(path, depth=1, engine="nvme") as reader:
            info = reader.info()
    except (OSError, MemoryError, ValueError) as error:
        record["passthrough"] = False
        text = str(getattr(error, "strerror", None) or error)
        return Line(False, "passthrough", text, "Linux 5.19 or newer, or read the block device")
    record.update(passthrough=True, target_bytes=info.target_bytes)
    return Line(True, "passthrough", f"works, logical blocks of {info.lba_bytes} B")


def _size_line(record: dict[str, Any], path: str) -> Line:
    from pagegram_io.sizes import format_bytes

    try:
        with open(path, "rb", buffering=0) as target:
            record["target_bytes"] = size = target.seek(0, os.SEEK_END)
    except OSError as error:  # a file of /proc
        text = f"none: the kernel makes {click.format_filename(path)} as it is read ({error.strerror})"
        return Line(False, "size", text, "name a file on a disk")
    enough = size >= PAGE_BYTES
    return Line(enough, "size", format_bytes(size), "" if enough else "name something larger than a page")


def _filesystem_line(filesystem: str) -> Line:
    from pagegram_io import doctor

    if filesystem == "overlay":
        cure = "its speed is a container's; name a path on a mounted volume (docker run -v /data:/data)"
        return Line(False, "file system", "overlay: this lies in a container's image layers", cure)
    if filesystem in doctor.MEMORY_FILE_SYSTEMS:
        return Line(False, "file system", f"{filesystem}: memory, no device behind it", "name a path on a disk")
    return Line(True, "file system", filesystem)


def _device_lines(record: dict[str, Any], device: BlockDevice | None) -> list[Line]:
    fields = ("name", "model", "logical_block_bytes", "physical_block_bytes", "scheduler", "rotational", "poll_queues")
    for field in fields:
        name = field if field.startswith(("logical", "physical", "sched", "rot", "poll")) else f"device_{field}"
        record[name] = getattr(device, field) if device else None
    if device is None:
        return [Line(None, "device", "none that /sys knows stands behind it")]
    turning = ", rotational (or the virtual machine says so)" if device.rotational else ""
    blocks = f"logical {device.logical_block_bytes} B, physical {device.physical_block_bytes} B"
    lines = [
        Line(True, "device", f"{device.name}: {device.model or 'no model named'}{turning}"),
        Line(device.logical_block_bytes <= PAGE_BYTES, "block size", blocks),
    ]
    plain = device.scheduler in ("none", "")
    cure = f"for the least CPU a read: echo none | sudo tee /sys/block/{device.disk}/queue/scheduler"
    lines.append(Line(True if plain else None, "scheduler", device.scheduler or "none", "" if plain else cure))
    cure = "--iopoll needs them: poll_queues=4 for the driver, as nvme.poll_queues=4 on the kernel's command line"
    cure = cure if device.poll_queues == 0 else ""
    text = "not with this driver" if device.poll_queues is None else str(device.poll_queues)
    lines.append(Line(True if device.poll_queues else None, "poll queues", text, cure))
    return lines


def _open_fault(path: str) -> OSError | None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return error
    return None


def _permission_cure(fault: OSError, status: os.stat_result, kind: str) -> str:
    if fault.errno == errno.EPERM:
        return "a container or virtual machine keeps it away (device cgroup): pass the device through, or read a file"
    if fault.errno != errno.EACCES:
        return "the kernel cannot open it now; see dmesg"
    if kind == "file":
        return "change its mode or owner, or use sudo"
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    joins = kind != "folder" and group != "root" and status.st_mode & stat.S_IRGRP
    return (f"sudo usermod -aG {group} $USER and log in anew, or " if joins else "") + "use sudo"


def _direct_lines(record: dict[str, Any], path: str, kind: str) -> list[Line]:
    from pagegram_io import doctor

    record.update(direct=None, direct_memory_alignment=None, direct_offset_alignment=None)
    tried = _first_file(path) if kind == "folder" else path
    if tried is None:
        return [Line(None, "O_DIRECT", "not tried: no readable file lies here", "name a file")]
    fault = doctor.direct_read_fault(tried)
    record["direct"] = fault is None
    where = f" (tried on {os.path.basename(tried)})" if kind == "folder" else ""
    if fault is not None:
        cure = "name a path on ext4, xfs or a raw device; --buffered measures the page cache"
        return [Line(False, "O_DIRECT", f"{fault.strerror}{where}", cure)]
    lines = [Line(True, "O_DIRECT", f"works{where}")]
    alignment = doctor.direct_alignment(tried)
    if alignment is not None:
        record.update(direct_memory_alignment=alignment[0], direct_offset_alignment=alignment[1])
        text = f"memory {alignment[0]} B, offsets {alignment[1]} B; the reader keeps to {PAGE_BYTES}"
        lines.append(Line(max(alignment) <= PAGE_BYTES, "alignment", text))
    return lines


def _first_file(folder: str) -> str | None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK):
                return entry.path
    return None


def _content_lines(record: dict[str, Any], path: str) -> list[Line]:
    from pagegram_io import doctor, table_file
    from pagegram_io.errors import FormatError

    record.update(first_hole_byte=None, table_content=None, table_label=None)
    try:
        hole = doctor.holes_in(path, 0, record["target_bytes"])
        record["first_hole_byte"] = hole
        if hole is None:
            lines = [Line(True, "holes", "none: every block is written")]
        else:
            cure = "reads there never touch the device; make a dense file: pagegram-io mkfile"
            lines = [Line(False, "holes", f"from byte {hole:,} on, something is a hole or was never written", cure)]
    except OSError as error:
        lines = [Line(None, "holes", f"not known: {error.strerror}")]
    try:
        header = table_file.read_header(path)
    except (FormatError, OSError) as error:
        text = str(error).removeprefix(f"{path}: ")
        return [*lines, Line(None, "table file", f"no ({text})")]
    label = header.layout.label if header.layout else "no layout"
    record.update(table_content=header.content, table_label=label)
    return [*lines, Line(True, "table file", f"{label}, {header.page_count:,} pages, {header.content}")]


def _print_lines(lines: list[Line]) -> None:
    """One line a finding, its cure beneath it."""
    import sys

    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
    marks = {True: ("ok", "green"), False: ("missing", "red"), None: ("-", "dim")}
    width = max(len(line.name) for line in lines)
    for line in lines:
        mark, style = marks[line.ok]
        console.print(Text.assemble((f"{mark:<8}", style), f"{line.name:<{width}}  {line.text}"))
        if line.cure:
            console.print(Text(" " * (width + 10) + "cure: " + line.cure))
