"""The list of sources, and their packages: fetching them and reading their files. Used by build.py."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from program import Refusal


@dataclass(frozen=True)
class Source:
    """A line of build_sources.tsv."""

    kind: str  # deb, npm or pypi: whose client fetches it
    package: str  # as that client wants it: name, name@version (npm), name==version (pypi)
    language: str  # en, zh, de, ja, ru, code, math; or "path": each file's path names it
    domain: str
    reader: str  # a key of READERS
    share: float  # of the files (or sections) that is used, in (0, 1]
    files: str  # regular expression: paths to read, without .gz
    licence: str

    @property
    def name(self) -> str:
        return re.split("@|==", self.package)[0]


def read_sources(path: Path, names: str | None = None) -> list[Source]:
    """Read the list; with `names` (comma-separated), only those of it."""
    sources = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            kind, package, language, domain, reader, share, files, licence = line.split("\t")
            sources.append(Source(kind, package, language, domain, reader, float(share), files, licence))
    if names is None:
        return sources
    wanted = {name.strip() for name in names.split(",")}
    unknown = sorted(wanted - {source.name for source in sources})
    if unknown:
        raise Refusal(f"--limit-sources: '{unknown[0]}' is not a name in {path.name}", 2)
    return [source for source in sources if source.name in wanted]


def fetch(source: Source, root: Path) -> Path:
    """Return the package's file, fetched by its ordinary client unless it is there already."""
    folder = root / "packages" / source.kind / source.name
    if not folder.exists():
        # pip: only wheels, as a source distribution runs its setup.py to state its name.
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        client = {
            "deb": ["apt-get", "download"],
            "npm": ["npm", "pack", "--ignore-scripts"],
            "pypi": pip,
        }[source.kind]
        if shutil.which(client[0]) is None:
            raise Refusal(f"{client[0]} is not on this machine; {source.name} comes through it", 3)
        # The folder gets its name when its file is whole: one that exists is never half fetched.
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            run_client([*client, source.package], part)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    files = sorted(folder.iterdir())
    if len(files) != 1:
        raise Refusal(f"{folder} holds {len(files)} files instead of one package; remove it and run again")
    return files[0]


def run_client(command: list[str], folder: Path) -> None:
    """Run a package client in a folder; of what it prints, the first error is what a person needs to know."""
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        reason = next((line for line in lines if re.match("E:|error|npm err", line, re.IGNORECASE)), "no reason given")
        hint = "; has 'apt-get update' been run?" if command[0] == "apt-get" else ""
        raise Refusal(f"{command[-1]} was not fetched: {reason}{hint}")


def package_version(source: Source, package: Path) -> str:
    """The version in the file's name: n_VERSION_all.deb, n-VERSION.tgz, n-VERSION-py3-none-any.whl."""
    if source.kind == "deb":
        return package.name.split("_")[1].replace("%3a", ":")
    return package.name[len(source.name) + 1 :].removesuffix(".tgz").split("-")[0]


def package_files(package: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield path (without .gz) and unpacked bytes of the wanted files, in the package's own order."""
    try:
        if package.suffix == ".whl":
            with zipfile.ZipFile(package) as wheel:
                yield from ((path, wheel.read(path)) for path in wheel.namelist() if wanted(path))
        elif package.suffix == ".deb":
            # Through a pipe: a kernel's sources unpack to more than a gigabyte, of which we read a part.
            command = ["dpkg-deb", "--fsys-tarfile", str(package)]
            with (
                subprocess.Popen(command, stdout=subprocess.PIPE) as unpacker,
                tarfile.open(fileobj=unpacker.stdout, mode="r|") as archive,
            ):
                yield from archive_files(archive, wanted)
        else:
            with tarfile.open(package) as archive:
                yield from archive_files(archive, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise Refusal(f"{package} is damaged ({error}); remove its folder and run again") from None


def archive_files(archive: tarfile.TarFile, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a tar archive and of the source archives (.tar.xz) in it."""
    unpackers = {".gz": gzip.decompress, ".dz": gzip.decompress, ".bz2": bz2.decompress}
    for member in archive:
        stem, suffix = os.path.splitext(member.name)
        path = stem if suffix in unpackers else member.name
        inside = path.endswith(".tar.xz")
        content = archive.extractfile(member) if member.isfile() and (inside or wanted(path)) else None
        if content is None:
            continue
        if inside:
            with tarfile.open(fileobj=content, mode="r|xz") as inner:
                yield from archive_files(inner, wanted)
        else:
            data = content.read()
            yield path, unpackers[suffix](data) if suffix in unpackers else data
