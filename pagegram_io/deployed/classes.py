"""The class of each DeepSeek token id: ids whose texts differ only in case, accents or white space share one.

The map is shipped, so that a plain install needs no tokenizer; ``make_classes`` makes it again from a tokenizer.json.
It is stored as an LZMA file of little-endian int32: each id's class less the number of classes seen before it, so
that a class of its own is 0.
"""

from __future__ import annotations

import functools
import hashlib
import lzma
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pagegram_io.errors import FormatError
from pagegram_io.hashes import ClassMap

if TYPE_CHECKING:
    import tokenizers

CLASS_FILE = Path(__file__).with_name("deepseek_classes.i32.xz")
CLASS_COUNT = 99_092
SHA256_INT32 = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"
SHA256_INT64 = "26b9be2936d236a124ba318a998c417bc7032e3e92a3107fe98deee49f1dc496"
REPLACEMENT = "\ufffd"  # in the text of an id that is not whole characters
SENTINEL = "\ue000"  # stands for a lone space, which strip would take away


def digest(classes: np.ndarray, dtype: str = "<i4") -> str:
    """SHA-256 of the classes as little-endian integers."""
    return hashlib.sha256(classes.astype(dtype).tobytes()).hexdigest()


def make_classes(tokenizer: tokenizers.Tokenizer) -> np.ndarray:
    """The class of each id of a tokenizer, uint32 [vocabulary], in the order of first sight."""
    from tokenizers import Regex, normalizers

    normal = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), SENTINEL),
            normalizers.Strip(),
            normalizers.Replace(SENTINEL, " "),
        ]
    )
    class_of: dict[str, int] = {}
    classes = np.empty(tokenizer.get_vocab_size(with_added_tokens=True), np.uint32)
    for i in range(len(classes)):
        text = tokenizer.decode([i], skip_special_tokens=False)
        key = tokenizer.id_to_token(i) if REPLACEMENT in text else normal.normalize_str(text) or text
        classes[i] = class_of.setdefault(key or text, len(class_of))
    return classes


def pack_classes(classes: np.ndarray) -> bytes:
    """The shipped file's bytes."""
    return lzma.compress((classes.astype(np.int64) - _classes_before(classes)).astype("<i4").tobytes(), preset=9)


def _classes_before(classes: np.ndarray) -> np.ndarray:
    """How many classes were seen before each id, int64."""
    seen = np.maximum.accumulate(classes.astype(np.int64)) + 1
    return np.concatenate([[0], seen[:-1]])


def unpack_classes(data: bytes) -> np.ndarray:
    """The classes of a shipped file, uint32; FormatError when they are not those that it must hold."""
    try:
        steps = np.frombuffer(lzma.decompress(data), "<i4")
    except (lzma.LZMAError, ValueError) as error:
        raise FormatError(f"{CLASS_FILE.name}: the class map is damaged ({error}); reinstall the package") from None
    # Each 0 is a new class, so the classes seen before an id are the zeros before it.
    before = np.cumsum(steps == 0) - (steps == 0)
    classes = (steps + before).astype(np.uint32)
    if digest(classes) != SHA256_INT32:
        raise FormatError(f"{CLASS_FILE.name}: the class map is not DeepSeek's; reinstall the package")
    return classes


@functools.cache
def deepseek_classes() -> ClassMap:
    """The shipped map, checked against its SHA-256."""
    return ClassMap(unpack_classes(CLASS_FILE.read_bytes()))
