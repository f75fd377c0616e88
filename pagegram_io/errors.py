"""The one exception of our own; everything else is ValueError, OSError(errno, text, path) or MemoryError."""

from __future__ import annotations


class FormatError(ValueError):
    """A file is not what it claims to be; str(error) is the whole sentence, the path included."""
