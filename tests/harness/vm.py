"""A virtual machine with an emulated NVMe drive: Debian's kernel, the host's files read-only over 9p.

Needs qemu-system-x86_64, busybox (static), kmod, cpio and apt-get (for the kernel, once). Emulated, since nested KVM
is missing or broken on many machines that tests run on: it shows that a path works, never how fast.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
MODULES = ("nvme", "virtio_pci", "9pnet_virtio", "9p")
INIT = """#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sysfs /sys; $B mount -t devtmpfs dev /dev
while read name options; do $B insmod "/modules/$name" $options || echo "cannot load $name"; done < /modules/order
$B mount -t 9p -o trans=virtio,ro,msize=524288,version=9p2000.L,cache=loose host /host
$B mount -t proc proc /host/proc; $B mount -t sysfs sysfs /host/sys; $B mount --bind /dev /host/dev
script=$($B sed -n 's/.*guest_script=\\([^ ]*\\).*/\\1/p' /proc/cmdline)
# Namespaces appear a moment after their driver.
for i in 1 2 3 4 5 6 7 8 9 10; do [ -e /dev/ng0n1 ] && break; $B sleep 1; done
PATH=/usr/sbin:/usr/bin:/sbin:/bin $B chroot /host /bin/sh "$script" > /dev/ttyS1
echo "guest-exit $?"
$B poweroff -f
"""


class CannotBuild(Exception):
    """What this machine lacks, in one sentence."""


@dataclass(frozen=True)
class Namespace:
    """One namespace of the drive: an image file, its block size, and 512-byte sectors whose reading fails."""

    image: Path
    block_bytes: int = 512
    bad_sectors: Sequence[int] = ()


def _run(command: Sequence[str | Path], **options: object) -> str:
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if ran.returncode:
        raise CannotBuild(f"{Path(str(command[0])).name} failed: {(ran.stderr or ran.stdout).strip()[-300:]}")
    return str(ran.stdout)


def missing_programs() -> list[str]:
    """What has to be installed first."""
    needed = ["qemu-system-x86_64", "cpio", "apt-get", "apt-cache", "dpkg", "depmod", "modprobe"]
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in needed if shutil.which(name, path=path) is None] + (
        [] if BUSYBOX.exists() else ["busybox"]
    )


def build(folder: Path) -> tuple[Path, Path]:
    """Kernel and initial file system in folder; made once, kept there."""
    kernel, initrd = folder / "vmlinuz", folder / "initrd.gz"
    if kernel.exists() and initrd.exists():
        return kernel, initrd
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    depends = _run(["apt-cache", "depends", "linux-image-amd64"])
    found = re.search(r"Depends: (linux-image-\S+)", depends)
    if not found:
        raise CannotBuild("apt-cache knows no linux-image-amd64; run apt-get update")
    _run(["apt-get", "download", found[1]], cwd=work)
    _run(["dpkg", "-x", next(work.glob("*.deb")), work / "root"])
    modules = next((work / "root" / "lib" / "modules").iterdir())
    _run(["/sbin/depmod", "-b", work / "root", modules.name])
    start = work / "initrd"
    for name in ("bin", "modules", "proc", "sys", "dev", "host"):
        (start / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, start / "bin" / "busybox")
    order: list[str] = []
    for module in MODULES:
        listed = _run(["/sbin/modprobe", "-d", work / "root", "-S", modules.name, "--show-depends", module])
        for line in listed.splitlines():
            if not line.startswith("insmod "):
                continue
            source = Path(line.split()[1])
            name = source.name.removesuffix(".xz")
            if any(entry.split()[0] == name for entry in order):
                continue
            data = source.read_bytes()
            (start / "modules" / name).write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)
            order.append(name + (" poll_queues=1" if name == "nvme.ko" else ""))
    (start / "modules" / "order").write_text("\n".join(order) + "\n")
    (start / "init").write_text(INIT)
    (start / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(start)) for path in sorted(start.rglob("*")))
    archive = subprocess.run(
        ["cpio", "--create", "--format=newc", "--quiet"],
        input=names.encode(),
        stdout=subprocess.PIPE,
        cwd=start,
        check=True,
    )
    initrd.write_bytes(gzip.compress(archive.stdout, 1))
    shutil.copy(next((work / "root" / "boot").glob("vmlinuz-*")), folder / "vmlinuz.partial")
    shutil.rmtree(work)
    (folder / "vmlinuz.partial").rename(kernel)
    return kernel, initrd


def _drive(number: int, namespace: Namespace) -> list[str]:
    image: dict[str, object] = {"driver": "file", "filename": str(namespace.image)}
    if namespace.bad_sectors:
        errors = [
            {"event": "none", "iotype": "read", "errno": 5, "sector": sector, "once": False, "immediately": True}
            for sector in namespace.bad_sectors
        ]
        image = {"driver": "blkdebug", "image": image, "inject-error": errors}
    node = {"driver": "raw", "node-name": f"image{number}", "file": image}
    block = f"logical_block_size={namespace.block_bytes},physical_block_size={namespace.block_bytes}"
    device = f"nvme-ns,bus=controller,nsid={number},drive=image{number},{block}"
    return ["-blockdev", json.dumps(node), "-device", device]


def run(folder: Path, script: Path, namespaces: Sequence[Namespace], out: Path, *, timeout_s: float) -> tuple[str, str]:
    """Boot, run a shell script of the host in the guest, and return (what it printed, the console)."""
    kernel, initrd = build(folder)
    command = [
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-machine", "q35",
        "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1024",
        "-kernel", kernel, "-initrd", initrd,
        "-append", f"console=ttyS0 quiet panic=-1 mitigations=off guest_script={script}",
        "-serial", "stdio", "-serial", f"file:{out}",
        "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
        "-device", "nvme,id=controller,serial=pagegram",
    ]  # fmt: skip
    for number, namespace in enumerate(namespaces, start=1):
        command += _drive(number, namespace)
    ran = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        check=False, errors="replace",
    )  # fmt: skip
    return (out.read_text(errors="replace") if out.exists() else ""), ran.stdout
