"""Make tests/golden/deployed.json: digests of the rows of a million tokens, by the plain Python twins of each model.

    python tests/golden/make_deployed.py [MODEL...]     # some minutes; of these models alone, the others as they are

The streams are those of tests/deployed_streams.py: shipped text, with the end of a document as the model's own end of
sequence where it has one, and then as one document, so that only that id cuts histories.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deployed_streams import TWINS, stream_for

TOKENS = 1_000_000
BATCH_DOCUMENTS = 50


def main() -> None:
    path, names = Path(__file__).with_name("deployed.json"), sys.argv[1:]
    golden: dict[str, dict[str, str]] = json.loads(path.read_text())["models"] if names else {}
    for name, twin in TWINS.items():
        if names and name not in names:
            continue
        ids, starts = stream_for(name, TOKENS)
        digest = hashlib.sha256()
        # Whole documents at a time, or the whole where it is one.
        edges = [*starts[::BATCH_DOCUMENTS], len(ids)]
        for begin, end in zip(edges, edges[1:], strict=False):
            inside = [start - begin for start in starts if begin <= start < end]
            digest.update(np.array(twin(ids[begin:end], inside), "<i8").tobytes())
        stream = hashlib.sha256(np.array(ids, "<u4").tobytes() + np.array(starts, "<u8").tobytes()).hexdigest()
        golden[name] = {"stream_sha256": stream, "rows_sha256": digest.hexdigest()}
        print(name, golden[name], file=sys.stderr)
    text = json.dumps({"tokens": TOKENS, "models": golden}, indent=1) + "\n"
    path.write_text(text)


if __name__ == "__main__":
    main()
