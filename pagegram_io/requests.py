"""Request logs: what people asked and what the server answered, one JSON object a line, read as a token stream.

Each request is a document: its prompt, which a server reads in chunks (prefill), then its completion, which it makes a
token at a time (decode). Prompt and completion are lists of ids, or texts where a tokenizer is given.
"""

from __future__ import annotations

import json
import operator
import os
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from pagegram_io.errors import FormatError
from pagegram_io.input import InputFile
from pagegram_io.tokens import VOCABULARY_MAX, Stream

Encode = Callable[[str], list[int]]
PARTS = ("prompt", "completion")
LINE_BYTES_MAX = 1 << 26  # a request of millions of tokens; a file without line ends is not a log


def read_requests(
    path: str | os.PathLike[str],
    *,
    encode: Encode | None = None,
    vocabulary: int | None = None,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """The requests of a .jsonl file as a stream with prompt lengths, each a document; at most ``limit`` tokens.

    encode: text to ids, for prompts and completions that are texts. Other keys of a line are left alone.
    progress: called with the bytes read so far and the bytes of the file. FormatError names path:line for what is
    not a request; OSError with the path.
    """
    if limit is not None and operator.index(limit) < 1:
        raise ValueError(f"limit {limit} is not at least 1")
    if vocabulary is not None and not 1 <= vocabulary <= VOCABULARY_MAX:
        raise ValueError(f"a vocabulary of {vocabulary} ids is not between 1 and 2^32")
    source = os.fspath(path)
    ids, starts, prompts = array("I"), array("Q"), array("Q")
    size = vocabulary or VOCABULARY_MAX
    with InputFile(source) as file:
        pending = b""
        number = 0
        while limit is None or len(ids) < limit:
            piece = file.read(1 << 20)
            lines = (pending + piece).split(b"\n")
            pending = lines.pop() if piece else b""
            if len(pending) > LINE_BYTES_MAX:
                raise FormatError(f"{source}:{number + 1 + len(lines)}: a line of over {LINE_BYTES_MAX:,} bytes")
            for line in lines:
                number += 1
                if not line.strip():
                    continue
                where = f"{source}:{number}"
                prompt, completion = _read_request(line, where, encode, size)
                starts.append(len(ids))
                prompts.append(len(prompt))
                ids.extend(prompt)
                ids.extend(completion)
                if limit is not None and len(ids) >= limit:
                    break
            if progress and file.file_bytes:
                progress(file.taken_bytes, file.file_bytes)
            if not piece:
                break
    if not starts:
        raise FormatError(f"{source}: holds no requests")
    tokens = np.frombuffer(ids, np.uintc)[:limit]
    document_starts = np.frombuffer(starts, np.uint64)
    ends = np.append(document_starts[1:], np.uint64(tokens.size))
    kept = np.minimum(np.frombuffer(prompts, np.uint64), ends - document_starts)  # the last may be cut by the limit
    narrow = tokens.max() < 2**16
    tokens = tokens.astype(np.uint16 if narrow else np.uint32)
    tokens.flags.writeable = False
    known = vocabulary or (2**16 if narrow else VOCABULARY_MAX)
    return Stream(tokens, document_starts, known, os.path.basename(source), kept)


def _read_request(line: bytes, where: str, encode: Encode | None, vocabulary: int) -> tuple[list[int], list[int]]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise FormatError(f"{where}: the line is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: the line is not JSON: {error}") from None
    if not isinstance(row, dict) or not any(name in row for name in PARTS):
        raise FormatError(f"{where}: not a request: it needs a prompt and a completion, ids or text")
    prompt, completion = (_ids(row.get(name, []), f"{where}: its {name}", encode, vocabulary) for name in PARTS)
    if not prompt and not completion:
        raise FormatError(f"{where}: the request has no tokens")
    return prompt, completion


def _ids(value: Any, what: str, encode: Encode | None, vocabulary: int) -> list[int]:
    if isinstance(value, str):
        if encode is None:
            raise FormatError(f"{what} is text; give --tokenizer to turn it into ids, or a list of ids")
        try:
            value = encode(value)
        except ValueError as error:  # half a surrogate pair, a letter that the tokenizer has no token for
            raise FormatError(f"{what}: {error}") from None
    if not isinstance(value, list):
        raise FormatError(f"{what} is neither a list of ids nor a text")
    for item in value:
        if type(item) is not int:
            raise FormatError(f"{what} holds {item!r:.40}, which is not an id")
        if not 0 <= item < vocabulary:
            raise FormatError(f"{what} holds the id {item}, which is outside the vocabulary of {vocabulary:,} ids")
    return value
