"""``collisions --model``: n-grams as a deployed table sees them, rows as C makes them, layer by layer."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import reference_deployed as twins
from conftest import make_stream
from deployed_streams import TWINS, stream_for
from harness.checkpoints import engram_family
from hypothesis import given, settings
from hypothesis import strategies as st

from pagegram_io import collisions, deployed, native
from pagegram_io.cli import run
from pagegram_io.deployed import FAMILIES, family_of
from pagegram_io.deployed.ngrams import ngram_keys, rows_at, seen_lengths
from pagegram_io.hashes import ClassMap, Hash
from pagegram_io.tokens import Stream

CLASSES = ClassMap(np.array([0, 1, 1, 2, native.NO_TEXT, 3, 2, 0], np.uint32))


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Few ids in short documents, so that n-grams repeat and every rule of the history is met."""
    ids = draw(st.lists(st.integers(0, 7), min_size=1, max_size=60))
    cuts = draw(st.sets(st.integers(1, max(1, len(ids) - 1)), max_size=6))
    return make_stream(ids, [0, *sorted(cut for cut in cuts if cut < len(ids))], 8)


@st.composite
def rules(draw: st.DrawFn) -> Hash:
    order = draw(st.integers(1, 4))
    return Hash(
        order, draw(st.sampled_from(["mulxor", "poly"])), fill=draw(st.integers(0, 3)), vocabulary=8,
        end_id=draw(st.sampled_from([None, 0, 5])), classes=draw(st.sampled_from([None, CLASSES])),
        whole=draw(st.booleans()),
    )  # fmt: skip


def seen_by(rule: Hash, stream: Stream) -> list[tuple[int, ...]]:
    """What each position's n-gram is, value by value; one tuple for all that miss a token where the rule is whole."""
    ids, classes = stream.ids.tolist(), None if rule.classes is None else rule.classes.values.tolist()
    found = []
    for start, end in twins.spans(stream.document_starts.tolist(), len(ids)):
        for t in range(start, end):
            values, whole = twins.seen_values(
                ids, start, t, rule.order, fill=rule.fill, end_id=rule.end_id, classes=classes
            )
            found.append((-1,) if rule.whole and not whole else tuple(values))
    return found


@settings(max_examples=300)
@given(stream=streams(), rule=rules())
def test_keys_are_equal_exactly_where_the_values_are(stream: Stream, rule: Hash) -> None:
    seen, keys = seen_by(rule, stream), ngram_keys(rule, stream).tolist()
    assert len(set(zip(seen, keys, strict=True))) == len(set(seen)) == len(set(keys))
    found = collisions.distinct_seen(stream, rule)
    assert sorted(found.counts.tolist()) == sorted(seen.count(ngram) for ngram in set(seen))
    assert found.positions is not None
    assert {seen[p] for p in found.positions.tolist()} == set(seen)
    for key, position, count in zip(found.hashes.tolist(), found.positions.tolist(), found.counts, strict=True):
        assert (keys[position], keys.index(key), count) == (key, position, keys.count(key))


def test_lengths_start_again_where_the_history_does() -> None:
    stream = make_stream([1, 0, 3, 4, 5, 6, 1, 1], [0, 6], 8)
    assert seen_lengths(Hash(3, "mulxor", end_id=0, vocabulary=8), stream).tolist() == [1, 2, 1, 2, 3, 4, 1, 2]
    rule = Hash(3, "mulxor", vocabulary=8, classes=CLASSES)
    assert seen_lengths(rule, stream).tolist() == [1, 2, 3, 0, 1, 2, 1, 2]


def test_an_order_of_our_own_layouts_hashes_as_ever() -> None:
    stream = make_stream([1, 2, 3, 1, 2, 3], [0, 3])
    assert np.array_equal(ngram_keys(Hash(2), stream), native.hash_ngrams(stream, 2))


@pytest.mark.parametrize("model", [name for name in TWINS if name in FAMILIES])
def test_rows_of_equal_ngrams_are_equal_in_every_model(model: str) -> None:
    """What is one n-gram reads one row of each head, in the rows of the slow twins."""
    ids, starts = stream_for(model, 3000)
    family = family_of(model)
    layout, stream = family.layout(), make_stream(ids, starts, family.vocabulary, np.uint32)
    rows = np.array(TWINS[model](ids, starts), np.uint64)
    wanted: dict[tuple[int, int | None], list[np.ndarray]] = {}
    for column, group in enumerate(layout.groups):
        wanted.setdefault((group.order, group.layer), []).append(rows[:, column])
    assert sorted(wanted, key=str) == sorted(collisions.parts_of(layout), key=str)
    for (order, layer), columns in wanted.items():
        ngrams = collisions.distinct_seen(stream, collisions.rule_of(layout, order))
        assert ngrams.positions is not None
        groups = [g for g in layout.groups if (g.order, g.layer) == (order, layer)]
        of_part = np.stack(columns, axis=1)
        found = rows_at(layout, groups, stream, ngrams.positions)
        assert np.array_equal(found, of_part[ngrams.positions])
        lines = dict(zip(ngrams.hashes.tolist(), found.tolist(), strict=True))
        keys = ngram_keys(collisions.rule_of(layout, order), stream).tolist()
        assert all(lines[key] == line for key, line in zip(keys, of_part.tolist(), strict=True))


def by_hand(seen: list[tuple[int, ...]], rows: list[tuple[int, ...]], sizes: list[int]) -> dict[str, Any]:
    """The statistics of one order of one layer by counting: rows of each head, numbered in its own table."""
    line_of = dict(zip(seen, rows, strict=True))
    ratios, foreign = [], 0.0
    for k, size in enumerate(sizes):
        loads = [0] * size
        for line in line_of.values():
            loads[line[k]] += 1
        mean = sum(loads) / size
        ratios.append(sum((load - mean) ** 2 for load in loads) / size / mean)
        hits = [0] * size
        for line in rows:
            hits[line[k]] += 1
        foreign += sum(
            1 - seen.count(ngram) / hits[line[k]] for ngram, line in zip(seen, rows, strict=True)
        ) / len(seen) / len(sizes)  # fmt: skip
    couples = list(itertools.combinations(line_of.values(), 2))
    shared = [[x == y for x, y in zip(a, b, strict=True)] for a, b in couples]
    pairs = [line[1:] for line in shared if line[0]]
    return {
        "distinct_ngrams": len(line_of),
        "variance_to_mean": sum(ratios) / len(ratios),
        "foreign_share": foreign,
        "pairs": len(pairs),
        "extra_heads": sum(map(sum, pairs)) / len(pairs),
        "other_head_share": sum(map(any, pairs)) / len(pairs),
        "neighbour_ratio": sum(map(any, shared)) / (len(couples) * sum(1 / size for size in sizes)),
    }


def test_each_layer_equals_counting_by_hand_and_layers_differ() -> None:
    layout = engram_family().layout()
    stream = make_stream(np.random.default_rng(3).integers(0, 12, 700), [0, 90, 91, 500], 1000)
    rows = layout.rows(stream)
    measured = {}
    for order, layer in collisions.parts_of(layout):
        rule = collisions.rule_of(layout, order)
        columns = [c for c, g in enumerate(layout.groups) if (g.order, g.layer) == (order, layer)]
        sizes = [layout.groups[c].columns[0].modulus for c in columns]
        bases = [layout.groups[c].row_base for c in columns]
        own = [tuple(int(line[c]) - b for c, b in zip(columns, bases, strict=True)) for line in rows]
        record = collisions.measure(layout, collisions.distinct_seen(stream, rule), stream, layer)
        wanted = by_hand(seen_by(rule, stream), own, sizes)
        for name, value in wanted.items():
            assert getattr(record, name) == pytest.approx(value), (order, layer, name)
        assert record.extra_heads_theory == pytest.approx(1 / sizes[1])
        assert record.other_head_share_theory == pytest.approx(1 / sizes[1])
        assert (record.variance_to_mean_theory, record.neighbour_ratio_theory) == (1, 1)
        assert (record.layer, record.order, record.heads, record.rows) == (layer, order, 2, sum(sizes))
        measured[order, layer] = record
    assert set(measured) == {(2, 1), (2, 14), (3, 1), (3, 14)}
    for order in (2, 3):
        one, other = measured[order, 1], measured[order, 14]
        assert one.distinct_ngrams == other.distinct_ngrams
        assert one.pairs != other.pairs and one.variance_to_mean != other.variance_to_mean


def test_a_class_is_one_ngram_and_a_missing_token_is_the_one_that_stands_for_it() -> None:
    """DeepSeek: ids whose texts differ in case alone share their rows; a document's start reads as class 2."""
    layout = family_of("deepseek-v4.1-flash").layout()
    classes = layout.hashes[0].classes
    assert classes is not None
    values = classes.values.tolist()
    one = next(i for i, c in enumerate(values) if values.count(c) > 1)
    other = next(i for i in range(one + 1, len(values)) if values[i] == values[one])
    pad = values.index(2)
    stream = make_stream([one, 77, other, 77, pad, one], [0, 5], 129_280, np.uint32)
    keys = ngram_keys(collisions.rule_of(layout, 2), stream).tolist()
    assert keys[1] == keys[3] and keys[0] != keys[2]
    stream = make_stream([pad, one, one], [0, 2], 129_280, np.uint32)
    assert len(set(ngram_keys(collisions.rule_of(layout, 2), stream).tolist())) == 2


def test_columns_that_see_different_ngrams_are_refused() -> None:
    import dataclasses

    layout = engram_family().layout()
    hashes = (dataclasses.replace(layout.hashes[0], fill=9), *layout.hashes[1:])
    with pytest.raises(ValueError, match="columns of order 2 see different n-grams"):
        collisions.rule_of(dataclasses.replace(layout, hashes=hashes), 2)
    stream = make_stream([1, 2, 3])
    with pytest.raises(ValueError, match="give those of distinct_seen"):
        collisions.measure(layout, collisions.distinct_ngrams(stream, 2), stream, 1)


# ---- on the command line -------------------------------------------------------------------------------


def records(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["collisions", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_uniform_hash_is_as_theory_says(capsys: pytest.CaptureFixture[str]) -> None:
    lines = records(capsys, "--model", "engram-demo", "--limit", "100K")
    assert [(r["order"], r["layer"]) for r in lines] == [(2, 1), (2, 15), (3, 1), (3, 15)]
    for r in lines:
        assert (r["model"], r["tokenizer_stand_in"], r["variance_to_mean_theory"]) == ("engram-demo", None, 1)
        assert r["variance_to_mean"] == pytest.approx(1, abs=0.02)
        assert r["neighbour_ratio"] == pytest.approx(1, abs=0.05)
        assert r["extra_heads_theory"] == pytest.approx(7 / 646_600, rel=1e-3)


def test_sums_have_no_theory_and_what_is_measured_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "longcat-flash-lite", "--limit", "100K"]
    lines = records(capsys, *arguments)
    assert [(r["order"], r["layer"], r["heads"]) for r in lines] == [(2, None, 4), (3, None, 4), (4, None, 4)]
    assert all(r[name] is None for r in lines for name in r if name.endswith("_theory"))
    assert lines[0]["neighbour_ratio"] > 2  # bigrams share rows far more often than hashed ones would
    assert run(["collisions", *arguments]) == 0
    out = capsys.readouterr().out
    assert " layer " not in out and "There is no theory for it" in out
    assert "multilingual-20m stands in for the model's own ids: an estimate" in out
    assert f"{lines[0]['neighbour_ratio']:.4g} / -" in out


def test_the_table_of_a_model_with_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["collisions", "--model", "deepseek-v4.1-flash", "--limit", "20K"]) == 0
    out = capsys.readouterr().out
    assert " layer " in out and "ids of one class are one" in out and "seed" not in out
    assert len([line for line in out.splitlines() if line.startswith("deepseek-v4.1-flash ")]) == 6


def test_a_table_of_single_tokens_has_no_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = records(capsys, "--model", "gemma-ple", "--limit", "20K")
    assert (line["order"], line["heads"], line["pairs"], line["foreign_share"]) == (1, 1, 0, 0)
    assert line["extra_heads"] is None and line["variance_to_mean_theory"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--model", "nobody"], 2, "model 'nobody' is not known"),
        (["--model", "lngram"], 2, "hidden states"),
        (["--model", "gemma-ple", "--table", "20B"], 2, "--table describes our layouts"),
        (["--model", "gemma-ple", "--layout", "flat"], 2, "--layout describes our layouts"),
        (["--model", "gemma-ple", "--slots", "4"], 2, "--slots describes our layouts"),
        (["--model", "gemma-ple", "--orders", "2"], 2, "--orders describes our layouts"),
        (["--model", "gemma-ple", "--row-format", "bf16"], 2, "--row-format: how a model's rows are stored"),
        (["--model", "gemma-ple", "--page-size", "8KiB"], 2, "--page-size: how a model's rows are stored"),
        (["--model", "gemma-ple", "--scales", "read"], 2, "--scales"),
        (["--model", "gemma-ple", "--files", "x"], 2, "--files"),
        (["--model", "modded-nanogpt", "--limit", "10K"], 2, "50,304 ids"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["collisions", *arguments]) == status
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err, err


def test_a_model_of_a_streams_own(capsys: pytest.CaptureFixture[str], tmp_path: Any,
                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(deployed.FAMILIES, "toy-engram", engram_family())
    np.random.default_rng(1).integers(0, 40, 900).astype("<u2").tofile(tmp_path / "toy.u16")
    lines = records(capsys, "--model", "toy-engram", "--tokens", str(tmp_path / "toy.u16"))
    assert [(r["layout"], r["order"], r["layer"]) for r in lines] == [
        ("toy-engram", order, layer) for order in (2, 3) for layer in (1, 14)
    ]
