"""New files: written under a temporary name in the same folder, then renamed, so that none is ever half there."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

STEM_CHARACTERS_MAX = 40  # the temporary name stays below the 255 bytes of a file name, whatever the script


@contextlib.contextmanager
def new_path(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[Path]:
    """A temporary Path of the same suffix to write to; it becomes `path` when the block ends, or goes if it fails.

    For libraries that want a name; `new_file` is for all others. Raises FileExistsError where `path` exists (with
    `force` too, if it is not a regular file); OSErrors of the writing carry `path`, not the temporary name.
    """
    given = os.fspath(path)
    refuse_existing(given, force)
    final = Path(os.path.realpath(given))  # a link stays a link to the new content
    stem = final.stem[:STEM_CHARACTERS_MAX].replace(".", "-")  # no dot there that could begin another suffix
    temporary = final.with_name(f".{stem}-{secrets.token_hex(6)}{final.suffix}")
    try:
        # Not tempfile: its files are private (0600), and here the umask decides as for any other file.
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666))
        yield temporary
        refuse_existing(given, force)  # hours may have passed
        os.replace(temporary, final)
    except BrokenPipeError:  # of a pipe that the block wrote to as well: a regular file never raises it
        raise
    except OSError as error:
        if error.errno is None or error.filename not in (None, temporary, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror or os.strerror(error.errno), given) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


@contextlib.contextmanager
def new_file(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[BinaryIO]:
    """A binary file to write to; it becomes `path` when the block ends, or goes if it fails (see `new_path`)."""
    with new_path(path, force=force) as temporary, open(temporary, "wb") as file:
        yield file


@contextlib.contextmanager
def new_text(path: str | os.PathLike[str], *, force: bool = False) -> Iterator[TextIO]:
    """As ``new_file``, for UTF-8 text; line ends stay as they are written."""
    with new_file(path, force=force) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        yield text
        text.detach()  # flushes, and leaves closing and renaming to new_file


def refuse_existing(path: str, force: bool) -> None:
    """FileExistsError, or IsADirectoryError, unless a regular file may be made under this name."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:  # a dangling link also: its target is then made
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):  # renaming over /dev/null would replace the device
        raise FileExistsError(errno.EEXIST, "exists and is not a regular file; choose another name", path)
    if not force:
        raise FileExistsError(errno.EEXIST, "exists; --force replaces it", path)


def refuse_folder(folder: str) -> None:
    """OSError unless files can be made in this folder: EROFS where its file system is read-only."""
    os.stat(folder)  # its own error says whether it is not there or not to be looked into
    if not os.access(folder, os.W_OK):
        number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number, os.strerror(number), folder)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end the work as Ctrl-C does: by default they would leave gigabytes lying about."""
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
