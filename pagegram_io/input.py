"""Files read from the front, decompressed on the way (.xz, .zst), and no further than asked for."""

from __future__ import annotations

import errno
import lzma
import os
import stat
from typing import Protocol

from pagegram_io.errors import FormatError

COMPRESSIONS = (".xz", ".zst")
XZ_MAGIC = b"\xfd7zXZ\0"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after a first byte 0x50 to 0x5f: a frame of metadata
MAGIC_BYTES_MAX = 6
XZ_FEED_BYTES = 1 << 16
ZSTD_FEED_BYTES = 1 << 12  # its decoder takes no bound on the output, and four bytes can mean 128 KiB
XZ_MEMORY_BYTES_MAX = 1 << 30  # `xz -9` needs 65 MiB; without a limit a few bytes can ask for 4 GiB


class Decoder(Protocol):
    """What lzma.LZMADecompressor offers. An implementation may return more than `max_length` bytes."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class ZstdDecoder:
    """One zstd frame, in the manner of lzma.LZMADecompressor; OSError(ENOTSUP) without the zstandard package."""

    needs_input = True

    def __init__(self, path: str) -> None:
        try:
            import zstandard
        except ImportError:
            text = "reading .zst needs the zstandard package (pip install zstandard)"
            raise OSError(errno.ENOTSUP, text, path) from None
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._error = zstandard.ZstdError

    @property
    def eof(self) -> bool:
        return self._frame.eof

    @property
    def unused_data(self) -> bytes:
        return self._frame.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        try:
            return self._frame.decompress(data)
        except self._error as error:
            raise lzma.LZMAError(str(error)) from error


class InputFile:
    """The bytes of a file, decompressed if `compression` is .xz or .zst; a context manager.

    Several streams or frames in one file follow one another, as `xz` and `zstd` read them; anything else after
    the end is refused. `file_bytes` is the size on disk (None for a pipe), `taken_bytes` what was read of it.
    Raises OSError with the path, and FormatError where the compressed data is cut off, damaged or followed by others.
    """

    def __init__(self, path: str, compression: str = "") -> None:
        assert not compression or compression in COMPRESSIONS
        self.path = path
        self.compression = compression
        self.taken_bytes = 0
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by __exit__)
        status = os.fstat(self._file.fileno())
        self.file_bytes = status.st_size if stat.S_ISREG(status.st_mode) else None
        self._ready = memoryview(b"")  # decompressed, or put back, not yet given out
        self._packed = b""  # read, not yet given to the decoder
        self._decoder: Decoder | None = None
        self._begun = False

    def __enter__(self) -> InputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fill(self, view: memoryview) -> int:
        """Fill a view of bytes; the number of bytes is less than its length only at the end of the file."""
        done = 0
        while done < len(view):
            if self._ready:
                count = min(len(self._ready), len(view) - done)
                view[done : done + count] = self._ready[:count]
                self._ready = self._ready[count:]
            else:
                count = self._pull(view[done:]) if self.compression else self._read_into(view[done:])
            if count == 0:
                break
            done += count
        return done

    def read(self, count: int) -> bytes:
        """The next `count` bytes, fewer at the end of the file."""
        data = bytearray(count)
        return bytes(data[: self.fill(memoryview(data))])

    def put_back(self, data: bytes) -> None:
        """Let `data`, just read, be read again."""
        self._ready = memoryview(data + bytes(self._ready))

    def _read_into(self, view: memoryview) -> int:
        try:
            count = self._file.readinto(view) or 0
        except OSError as error:  # errors of reading carry no path of their own
            raise OSError(error.errno, error.strerror, self.path) from error
        self.taken_bytes += count
        return count

    def _take(self) -> bytes:
        """The next compressed bytes; empty at the end of the file."""
        if self._packed:
            packed, self._packed = self._packed, b""
            return packed
        packed_buffer = bytearray(XZ_FEED_BYTES if self.compression == ".xz" else ZSTD_FEED_BYTES)
        return bytes(packed_buffer[: self._read_into(memoryview(packed_buffer))])

    def _pull(self, view: memoryview) -> int:
        """Decompress at most a view of bytes, at least one of them unless the file ends."""
        while True:
            if self._decoder is None:
                if not self._begin():
                    return 0
                assert self._decoder is not None
            packed = b""
            if self._decoder.needs_input:
                packed = self._take()
                if not packed:
                    raise FormatError(f"{self.path}: the {self.compression} data is cut off")
            try:
                data = self._decoder.decompress(packed, len(view))
            except lzma.LZMAError as error:
                raise FormatError(f"{self.path}: the {self.compression} data is damaged ({error})") from error
            if self._decoder.eof:
                self._packed = self._decoder.unused_data
                self._decoder = None
            if data:
                count = min(len(data), len(view))
                view[:count] = data[:count]
                self._ready = memoryview(data)[count:]
                return count

    def _begin(self) -> bool:
        """Begin the next compressed stream; False if the file ends instead."""
        while True:
            while len(self._packed) < MAGIC_BYTES_MAX:
                packed, self._packed = self._packed, b""
                more = self._take()
                self._packed = packed + more
                if not more:
                    break
            # .xz allows zero bytes, four at a time, after a stream.
            padding = len(self._packed) - len(self._packed.lstrip(b"\0")) if self.compression == ".xz" else 0
            padding -= padding % 4
            if not self._begun or not padding:
                break
            self._packed = self._packed[padding:]
        if not self._packed and self._begun:
            return False
        if not self._packed:
            raise FormatError(f"{self.path}: the file is empty")
        if self.compression == ".xz":
            known = self._packed.startswith(XZ_MAGIC)
        else:
            skippable = self._packed[0] & 0xF0 == 0x50 and self._packed[1:4] == ZSTD_SKIPPABLE
            known = skippable or self._packed.startswith(ZSTD_MAGIC)
        if not known:
            fault = "other data follow the end of its" if self._begun else "the file does not begin as"
            raise FormatError(f"{self.path}: {fault} {self.compression} data")
        if self.compression == ".xz":
            self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES_MAX)
        else:
            self._decoder = ZstdDecoder(self.path)
        self._begun = True
        return True
