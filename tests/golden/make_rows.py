"""Make rows.json: SHA-256 of the rows of the first tokens of the shipped stream, by the plain Python reference.

    python tests/golden/make_rows.py

Rows are global row numbers as little-endian int64, a line a token, columns in the order of layouts.md. Takes some ten
seconds; nothing here calls the C core, which is what the digests are to check.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent)]

import reference  # noqa: E402

from pagegram_io.tokens import read_stream  # noqa: E402

TOKENS = 100_000
TABLES = {
    "flat 200M": reference.flat(200_000_000),
    "engram 3.2B": reference.engram(3_200_000_000),
    "pagegram 20B S=4": reference.pagegram(20_000_000_000, 4),
    "pagegram 20B S=15 seed 7": reference.pagegram(20_000_000_000, 15, seed=7),
    "pagegram 200M S=60 orders 1,2,3,4 heads 3": reference.pagegram(200_000_000, 60, orders=(1, 2, 3, 4), heads=3),
}


def main() -> None:
    stream = read_stream(limit=TOKENS)
    ids, starts = stream.ids.tolist(), stream.document_starts.tolist()
    digests = {}
    for name, table in TABLES.items():
        digest = hashlib.sha256()
        for line in reference.rows(table, ids, starts):
            digest.update(struct.pack(f"<{len(line)}q", *line))
        digests[name] = digest.hexdigest()
        print(name, digests[name])
    about = {"made_by": "tests/golden/make_rows.py", "tokens": TOKENS, "stream_sha256": stream.sha256, "rows": digests}
    (FOLDER / "rows.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
