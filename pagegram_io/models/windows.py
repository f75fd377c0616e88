"""Windows of a stream: which ones a step trains on, which are held out, and the stream that they make.

A window is a sequence of its own: no n-gram reaches back past its first token.
"""

from __future__ import annotations

import numpy as np

from pagegram_io.tokens import Stream

BATCHES = 1  # what a seed is used for, so that no two uses draw the same numbers


def batch_begins(seed: int, step: int, stream_tokens: int, context: int, windows: int) -> np.ndarray:
    """Where the windows of a step begin, int64 [windows]: of seed and step alone, so a run resumes without state."""
    return np.random.default_rng([seed, BATCHES, step]).integers(0, stream_tokens - context, windows)


def held_out_begins(stream_tokens: int, context: int, windows: int) -> np.ndarray:
    """Where held-out windows begin, int64: evenly over the stream, apart; fewer where that many do not fit."""
    windows = min(windows, (stream_tokens - 1) // context)
    return np.arange(windows) * (stream_tokens - 1 - context) // max(windows - 1, 1)


def gather_windows(stream: Stream, begins: np.ndarray, length: int) -> np.ndarray:
    """The ids of windows, in the stream's dtype [windows, length]."""
    return stream.ids[begins[:, None] + np.arange(length)]


def window_stream(stream: Stream, begins: np.ndarray, length: int) -> Stream:
    """Windows one after the other as a stream of their own: each window's start also starts a document.

    Its simulated reads are those of a model that is trained on or evaluated with these windows, in this order.
    """
    begins = begins.astype(np.uint64)  # beside an int64, NumPy would compare floats
    low = np.searchsorted(stream.document_starts, begins)
    high = np.searchsorted(stream.document_starts, begins + np.uint64(length))
    starts = np.zeros((len(begins), length), bool)
    starts[:, 0] = True
    for line, (first, last) in enumerate(zip(low, high, strict=True)):
        starts[line, (stream.document_starts[first:last] - begins[line]).astype(np.int64)] = True
    ids = np.ascontiguousarray(gather_windows(stream, begins.astype(np.int64), length).reshape(-1))
    return Stream(ids, np.flatnonzero(starts).astype(np.uint64), stream.vocabulary, f"{stream.name} windows")
