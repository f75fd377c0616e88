"""Training: equal starts, exact gradients, whole runs, layouts of one's own (C3, C4, C15, C22-C27, C29)."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import make_stream
from test_models_table import two_orders_in_one_bucket

from pagegram_io.job import StreamSpec
from pagegram_io.layout import Layout
from pagegram_io.models.addressing import OwnRows
from pagegram_io.models.evaluation_job import EvalJob
from pagegram_io.models.evaluation_job import run as run_evaluation
from pagegram_io.models.memory import orthogonal
from pagegram_io.models.presets import BASE, LARGE, Preset
from pagegram_io.models.train import TrainJob, run
from pagegram_io.models.trainer import Trainer
from pagegram_io.models.transformer import Decoder, parameter_count, token_losses
from pagegram_io.models.windows import window_stream
from pagegram_io.tokens import Stream

torch.set_num_threads(1)  # what is this small only waits for other threads

TINY = Preset(
    "tiny",
    dim=16,
    layers=2,
    heads=2,
    vocabulary=64,
    context=16,
    batch_windows=4,
    micro_windows=2,
    steps=6,
    memory_layers=(0, 1),
    table_params=20_000,
    row_width=8,
    heads_per_order=2,
    validation_windows=4,
    validate_every=4,
)
MEMORIES = ("none", "flat", "engram", "pagegram")


def bigrams(tokens: int, seed: int) -> Stream:
    """A stream in which a token mostly decides the next, in documents that id 0 ends."""
    rng = np.random.default_rng(seed)
    ids = [1]
    for luck in rng.random(tokens - 1):
        ids.append(int(rng.integers(0, 64)) if luck < 0.2 else (ids[-1] * 5 + 3) % 64)
    starts = [0, *(i + 1 for i in range(tokens - 1) if ids[i] == 0)]
    return make_stream(ids, starts, 64)


STREAM, VALIDATION = bigrams(3000, 1), bigrams(600, 2)
NOWHERE = StreamSpec()  # in memory


def tiny_job(**options: Any) -> TrainJob:
    return TrainJob(options.pop("preset", TINY), NOWHERE, NOWHERE, **options)


def trainer_of(**options: Any) -> Trainer:
    return Trainer(tiny_job(**options), STREAM, VALIDATION)


run_tiny = functools.partial(run, stream=STREAM, validation=VALIDATION)


# ---- the model -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "count"), [(BASE, 60_953_472), (LARGE, 92_283_392)])
def test_parameter_counts(preset: Preset, count: int) -> None:
    """C24; on the device that allocates nothing."""
    with torch.device("meta"):
        model = Decoder(preset, torch.Generator("cpu"))
    assert parameter_count(model) == count
    assert preset is not BASE or parameter_count(model.blocks) - 12 * 384 == 10_616_832


def test_step_0_loss_is_bit_equal_whatever_the_memory() -> None:
    """C3, and after the first step they differ."""
    firsts, seconds, held_out = set(), set(), set()
    for options in [{"memory": m} for m in MEMORIES] + [{"memory": "pagegram", "gate": "context"}]:
        trainer = trainer_of(**options)
        held_out.add(trainer.validate().loss)
        firsts.add(trainer.train_step())
        seconds.add(trainer.train_step())
    assert len(firsts) == len(held_out) == 1
    assert len(seconds) == 5


@pytest.mark.parametrize(("out_width", "in_width"), [(16, 32), (32, 16), (384, 1024)])
def test_value_matrix_is_orthogonal_with_its_gain(out_width: int, in_width: int) -> None:
    """C22."""
    gain = (2 * out_width / in_width) ** 0.5
    w = orthogonal(out_width, in_width, gain, torch.Generator().manual_seed(1)).double()
    product = w @ w.T if out_width <= in_width else w.T @ w
    assert (product - gain**2 * torch.eye(len(product))).abs().max() < 1e-5
    assert out_width != 384 or abs(gain - 0.8660) < 1e-4


def test_backbone_and_batches_are_the_same_whatever_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """C22, C23, C25: weights, generator, tokens seen, and gates that start at a half."""
    states, weights, batches = [], [], []
    for options in [{"memory": m} for m in MEMORIES] + [{"memory": "pagegram", "gate": "context"}]:
        trainer = trainer_of(**options)
        states.append(trainer.generator.get_state())
        named = trainer.model.named_parameters()
        weights.append({name: p.detach().clone() for name, p in named if not name.startswith("memory.")})
        seen: list[torch.Tensor] = []
        trainer.model.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0].clone()))
        trainer.train_step()
        trainer.train_step()
        batches.append(torch.cat(seen))
        if options["memory"] != "none":
            assert trainer.model.memory is not None and trainer.table is not None
            if "gate" not in options:
                fresh = trainer_of(**options).model.memory
                assert fresh is not None and [gate.item() for gate in fresh.gates] == [0.5, 0.5]
    for state, weight, batch in zip(states[1:], weights[1:], batches[1:], strict=True):
        assert torch.equal(state, states[0]) and torch.equal(batch, batches[0])
        assert weight.keys() == weights[0].keys()
        assert all(torch.equal(weight[name], weights[0][name]) for name in weight)


def test_untouched_rows_stay_as_they_are() -> None:
    """C25: bit-unchanged, while those of a step all move."""
    trainer = trainer_of()
    table = trainer.table
    assert table is not None and not table.weight.any()
    trainer.train_step()
    touched = table.last > 0
    assert 0 < touched.sum() < len(touched)
    assert not table.weight[~touched].any() and not table.v[~touched].any()
    before = table.weight.clone()
    trainer.train_step()
    still = table.last < 2
    assert torch.equal(table.weight[still], before[still])


def test_rates_of_every_step() -> None:
    """C26 in a run: the table's rate is 70 times the dense one at each step."""
    trainer = trainer_of(steps=20)
    assert trainer.table is not None
    for step in range(20):
        trainer.train_step()
        dense = {group["lr"] for group in trainer.adamw.param_groups}
        assert dense == {2e-3 * trainer.schedule.factor(step)}
        assert trainer.table.rates[step] == pytest.approx(70 * dense.pop(), rel=1e-15)
    decays = {group["weight_decay"]: {p.ndim for p in group["params"]} for group in trainer.adamw.param_groups}
    assert decays[0.1] == {2} and decays[0.0] == {0, 1}


def test_context_gate_is_between_0_and_1_and_changes_nothing_else() -> None:
    """C27."""
    scalar, context = trainer_of(seed=3), trainer_of(seed=3, gate="context")
    ours, theirs = scalar.model.memory, context.model.memory
    assert ours is not None and theirs is not None
    assert ours.value is not None and theirs.value is not None and torch.equal(ours.value, theirs.value)
    assert {name for name, _ in theirs.named_parameters()} - {name for name, _ in ours.named_parameters()} == {
        "key", "hidden_norms.0.weight", "hidden_norms.1.weight", "key_norms.0.weight", "key_norms.1.weight",
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    shape = (2, 5, 4, 8)
    read = theirs.read(torch.randn(shape, generator=generator), torch.ones(shape))
    x = torch.randn(2, 5, 16, generator=generator)
    for layer in (0, 1):
        alpha = theirs.alpha(x, read, layer)
        assert alpha.shape == (2, 5, 1) and ((alpha > 0) & (alpha < 1)).all() and alpha.std() > 0
        assert torch.allclose(theirs.add(x, read, layer), x + alpha * read.e)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_later_token_changes_nothing_before_it(memory: str) -> None:
    """C29, through rows, signs and logits of a trained model."""
    trainer = trainer_of(memory=memory)
    for _ in range(3):
        trainer.train_step()

    def logits(ids: list[int]) -> torch.Tensor:
        vectors = signs = None
        if trainer.addressing is not None and trainer.table is not None:
            stream = make_stream(ids, vocabulary=64)
            rows = trainer.addressing.rows(stream)
            vectors, signs = trainer.table.weight[rows][None], trainer.addressing.signs(stream)[None]
        with torch.no_grad():
            return trainer.model(torch.tensor([ids]), vectors, signs)[0]

    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    plain = logits(ids)
    for t in range(7):
        changed = logits([*ids[: t + 1], 63, *ids[t + 2 :]])
        assert torch.equal(changed[: t + 1], plain[: t + 1])
        assert not torch.equal(changed[t + 1], plain[t + 1])


@pytest.mark.parametrize("memory", ["flat", "pagegram"])
def test_sparse_gradient_equals_the_dense_one(memory: str) -> None:
    """C4: what the optimiser is given is the gradient of the whole table, summed over a row's uses."""
    trainer = trainer_of(memory=memory)
    for _ in range(2):
        trainer.train_step()
    assert trainer.addressing is not None and trainer.table is not None
    begins = np.array([0, 7, 7, 100])  # a window twice: its rows are used twice at least
    rows, leaf, places = trainer._read(begins)
    assert rows is not None and leaf is not None and places is not None
    for first in (0, 2):
        trainer._accumulate(begins[first : first + 2], leaf, places[first : first + 2])
    trainer.adamw.zero_grad()
    whole = trainer.table.weight.clone().requires_grad_()
    ids = torch.from_numpy(STREAM.ids[begins[:, None] + np.arange(17)].astype(np.int64))
    used = rows[places]
    signs = trainer.addressing.signs(window_stream(STREAM, begins, 16))
    logits = trainer.model(ids[:, :-1], F.embedding(used, whole), signs.view(*used.shape, -1))
    token_losses(logits, ids[:, 1:]).mean().backward()
    assert whole.grad is not None and leaf.grad is not None
    assert torch.allclose(leaf.grad, whole.grad[rows], rtol=1e-4, atol=1e-8)
    untouched = torch.ones(len(whole), dtype=torch.bool)
    untouched[rows] = False
    assert not whole.grad[untouched].any()


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_run_learns_and_says_what_made_it(memory: str) -> None:
    preset = dataclasses.replace(TINY, steps=30, validate_every=10)
    record = run_tiny(tiny_job(preset=preset, memory=memory, seed=5))[0]
    assert record["kind"] == "train" and record["memory"] == memory and record["seed"] == 5
    assert record["steps"] == [10, 20, 30] and record["tokens_seen"] == [640, 1280, 1920]
    assert record["tokens"] == 1920 and record["epochs"] == 1920 / 3000
    assert record["validation_losses"][0] > record["validation_losses"][-1] == record["loss"] < np.log(64)
    assert record["validation_windows"] == 4 and record["loss_error"] > 0
    assert record["bias_correction"] == (None if memory == "none" else "global")
    assert record == json.loads(json.dumps(record))
    if memory == "none":
        assert record["table_params_actual"] == 0
    else:
        assert abs(record["table_params_actual"] - 20_000) < 2000


def test_two_runs_are_the_same_and_seeds_are_not() -> None:
    losses = [run_tiny(tiny_job(seed=seed))[0]["loss"] for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_a_run_that_diverges_stops_with_a_line() -> None:
    preset = dataclasses.replace(TINY, lr=1e30)
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) at step \d+"):
        run_tiny(tiny_job(preset=preset, memory="none"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "engrams"}, "memory 'engrams'"),
        ({"gate": "wide"}, "gate 'wide'"),
        ({"bias_correction": "no"}, "bias correction 'no'"),
        ({"steps": 0}, "0 steps"),
        ({"device": "tpu9"}, "device 'tpu9'"),
        ({"checkpoint_every": 3}, "without an output folder"),
        ({"resume": True}, "without an output folder"),
        ({"out": "run", "checkpoint_every": 0}, "every 0 steps"),
    ],
)
def test_what_a_run_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run_tiny(tiny_job(**options))


def test_streams_that_do_not_fit() -> None:
    wide = make_stream([1] * 100, vocabulary=65)
    with pytest.raises(ValueError, match="vocabulary of 65 ids"):
        run(tiny_job(), stream=wide, validation=VALIDATION)
    with pytest.raises(ValueError, match="16 tokens, fewer than the 17"):
        run(tiny_job(), stream=STREAM, validation=make_stream([1] * 16, vocabulary=64))


def own_rows(stream: Stream) -> np.ndarray:
    """The bigram's row twice, by NumPy alone."""
    token = stream.ids.astype(np.int64) + 1
    before = np.concatenate([[0], token[:-1]])
    before[stream.document_starts.astype(np.int64)] = 0
    return np.stack([(token * 65 + before) % 997, 997 + (token + before * 65) % 997], axis=1)


OWN = OwnRows("mine", 2 * 997, 8, 2, own_rows)


@pytest.mark.parametrize("memory", [OWN, two_orders_in_one_bucket()], ids=["function", "data"])
def test_a_layout_of_ones_own_trains(memory: OwnRows | Layout, tmp_path: Path) -> None:
    """C15, the part in training: and its checkpoint is evaluated, given the layout."""
    out = str(tmp_path / "run")
    record = run_tiny(tiny_job(memory=memory, steps=12, out=out))[0]
    plain = run_tiny(tiny_job(memory="none", steps=12))[0]
    assert record["memory"] == "mine" and record["loss"] != plain["loss"]
    assert json.loads((tmp_path / "run/config.json").read_text())["layout"] is None
    again = run_evaluation(EvalJob(out, own=memory), validation=VALIDATION)[0]
    assert again["loss"] == record["loss"] and again["source"] == "fp32 in RAM"
    with pytest.raises(ValueError, match="layout of one's own"):
        run_evaluation(EvalJob(out), validation=VALIDATION)
