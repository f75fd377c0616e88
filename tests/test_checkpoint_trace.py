"""trace and simulate --checkpoint: what a trained model's own forward pass touches, access for access."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pagegram_io.cli import run as invoke_cli
from pagegram_io.job import StreamSpec
from pagegram_io.models import checkpoint
from pagegram_io.models.evaluate import evaluate
from pagegram_io.models.hashing import Hasher
from pagegram_io.models.presets import MINI
from pagegram_io.models.train import TrainJob, run
from pagegram_io.models.windows import held_out_begins, window_stream
from pagegram_io.tokens import Stream, read_stream, shipped_path, write_stream

TINY = dataclasses.replace(
    MINI, dim=16, layers=2, heads=2, context=16, batch_windows=2, micro_windows=2, steps=2, table_params=40_000,
    validation_windows=6,
)  # fmt: skip


class Recorder:
    """Rows of zeros; keeps which ones a forward pass asks for, by torch's own hashes."""

    def __init__(self, hasher: Hasher, width: int) -> None:
        self.hasher, self.width = hasher, width
        self.rows: list[torch.Tensor] = []

    def vectors(self, stream: Stream, begin: int, end: int) -> torch.Tensor:
        rows = self.hasher.rows(self.hasher.hashes(stream, begin, end))
        self.rows.append(rows)
        return torch.zeros(*rows.shape, self.width)

    def ahead(self, stream: Stream) -> None:
        """What is asked for next is of no interest here."""


@pytest.fixture(scope="module", params=[("flat", None), ("engram", None), ("pagegram", 4)], ids=lambda arm: arm[0])
def trained(request, tmp_path_factory) -> tuple[Path, Path]:
    """A checkpoint, and a stream of its vocabulary."""
    folder = tmp_path_factory.mktemp("trained")
    stream = folder / "held-out.u16"
    write_stream(stream, read_stream(shipped_path("mini-test.u16.xz"), limit=3_000).ids)
    spec = StreamSpec(str(stream), eod=0, vocabulary=2048)
    memory, slots = request.param
    run(TrainJob(TINY, spec, spec, memory=memory, slots=slots, hash_seed=5, out=str(folder / "run"), threads=1))
    return folder / "run", stream


def invoke(*arguments: object) -> int:
    return invoke_cli([str(argument) for argument in arguments])


def test_the_trace_is_what_the_forward_pass_touches(trained, tmp_path, capsys):
    folder, path = trained
    loaded = checkpoint.load(str(folder))
    layout = loaded.addressing.layout
    stream = read_stream(path, eod=0, vocabulary=2048)
    recorder = Recorder(Hasher(layout), layout.row_width)
    evaluate(loaded.model, stream, windows=6, addressing=loaded.addressing, source=recorder)
    touched = torch.cat(recorder.rows).numpy().astype(np.uint64)

    windows = window_stream(stream, held_out_begins(len(stream), TINY.context, 6), TINY.context)
    write_stream(tmp_path / "windows.u16", windows.ids)
    (tmp_path / "starts.txt").write_text("".join(f"{start}\n" for start in windows.document_starts))
    where = ("--checkpoint", folder, "--tokens", tmp_path / "windows.u16", "--documents", tmp_path / "starts.txt")
    for emit in ("rows", "pages"):
        assert invoke("trace", *where, "--emit", emit, "-o", tmp_path / f"{emit}.npy") == 0
    assert (np.load(tmp_path / "rows.npy") == touched).all()
    pages = np.load(tmp_path / "pages.npy")
    for row, page in zip(touched, pages, strict=True):  # 16 rows of pagegram lie on 2 pages, so sets
        assert {layout.address(int(r)) // layout.page_bytes for r in row} == {int(p) for p in page} - {0xFFFFFFFF}

    assert invoke("simulate", *where, "--cache", "none", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["layout"], record["seed"]) == (layout.name, 5)
    assert record["misses"] == np.count_nonzero(pages != 0xFFFFFFFF)


def test_mistakes_get_one_line(trained, tmp_path, capsys):
    folder, path = trained
    output = ("-o", tmp_path / "x.npy")
    for arguments, told in (
        (("trace", "--checkpoint", folder, *output), "--checkpoint needs --tokens"),
        (("trace", *output), "give --layout, or --model, or --checkpoint"),
        (("trace", "--checkpoint", folder, "--tokens", path, "--seed", 3, *output), "--seed describes a layout"),
        (("simulate", "--checkpoint", folder, "--tokens", path, "--layout", "flat"), "--layout describes a layout"),
        (("simulate", "--checkpoint", folder, "--tokens", path, "--table", "2M"), "--table describes a layout"),
        (("simulate", "--checkpoint", folder, "--pages", "x.npy"), "--pages and --checkpoint"),
    ):
        assert invoke(*arguments) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert told in line


def test_ids_beyond_the_vocabulary_get_one_line(trained, tmp_path, capsys):
    folder, _ = trained
    np.save(tmp_path / "big.npy", np.array([1, 2047, 2048, 3], np.uint16))
    for command in (("simulate",), ("simulate", "--vocab", "60000"), ("trace", "-o", tmp_path / "x.npy")):
        assert invoke(*command, "--checkpoint", folder, "--tokens", tmp_path / "big.npy") == 1
        [line] = capsys.readouterr().err.splitlines()
        assert "the id 2048 at position 2 is outside the vocabulary of 2,048 ids" in line
    assert not (tmp_path / "x.npy").exists()


def test_a_model_without_a_table_has_no_trace(trained, tmp_path, capsys):
    folder, path = trained
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text(json.dumps({**config, "layout": None}))
    assert invoke("trace", "--checkpoint", tmp_path / "bare", "--tokens", path, "-o", tmp_path / "x.npy") == 1
    assert "this model has no table" in capsys.readouterr().err
    assert not (tmp_path / "x.npy").exists()
