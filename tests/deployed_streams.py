"""The streams on which deployed tables are compared with their twins, and the twins by model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import reference_deployed as twins

from pagegram_io.deployed.classes import deepseek_classes
from pagegram_io.tokens import DEEPSEEK_STREAM, read_stream, shipped_stream_path

Rows = Callable[[Sequence[int], Sequence[int]], list[list[int]]]


def of_classes(rows: Rows, ids: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
    classes = deepseek_classes().values.tolist()
    return rows([classes[i] for i in ids], starts)


TWINS: dict[str, Rows] = {
    "deepseek-v4.1-flash": partial(of_classes, twins.deepseek_rows),
    "engram-demo": partial(of_classes, twins.demo_rows),
    "qwen3.8-flash-next": twins.qwen_rows,
    "longcat-flash-lite": twins.longcat_rows,
    "longcat-flash-lite-no-stop": partial(twins.longcat_rows, stop=False),
    "modded-nanogpt": twins.nanogpt_rows,
    "gemma-ple": twins.gemma_rows,
    "over-encoding": twins.over_encoding_rows,
}
END_IDS = {"qwen3.8-flash-next": 248_044, "longcat-flash-lite": 2, "longcat-flash-lite-no-stop": 2}
IDS_KEPT = {"modded-nanogpt": 50_304}


def stream_for(model: str, tokens: int) -> tuple[list[int], list[int]]:
    """Ids and document starts: shipped text, in the model's ids where it is shipped in them."""
    if model in ("deepseek-v4.1-flash", "engram-demo"):
        stream = read_stream(shipped_stream_path(DEEPSEEK_STREAM), limit=tokens)
        return stream.ids.tolist(), stream.document_starts.tolist()
    stream = read_stream(limit=tokens)
    ids = stream.ids.astype(np.int64)
    if model in END_IDS:  # one sequence: only the model's own end cuts it
        return np.where(ids == 0, END_IDS[model], ids).tolist(), [0]
    return (ids % IDS_KEPT.get(model, 2**32)).tolist(), stream.document_starts.tolist()
