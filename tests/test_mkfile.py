"""``pagegram-io mkfile``: makes a dense file, replaces nothing, leaves nothing half-made."""

from __future__ import annotations

import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from harness.checkpoints import engram_family, engram_files

from pagegram_io import cli, deployed, doctor, table_file
from pagegram_io.layout import pagegram


def run(*arguments: str | os.PathLike[str]) -> int:
    return cli.run(["mkfile", *map(os.fspath, arguments)])


def test_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a b.safetensors"
    assert run(path, "--table", "1M") == 0
    header = table_file.read_header(path)
    assert header.layout == pagegram(10**6, 4)
    out, err = capsys.readouterr()
    assert err == "" and f"{path}: {path.stat().st_size:,} bytes" in out
    assert f"{header.page_count:,} pages of 4 KiB from byte 4,096" in out
    command = shlex.split(out.splitlines()[-1].removeprefix("next: "))
    assert command[:4] == ["pagegram-io", "nvme", "--depth", "64"] and command[-1] == str(path)
    assert command[4:-1] == ["--table", "1M", "--layout", "pagegram", "--slots", "4"]
    assert os.listdir(tmp_path) == [path.name]


def test_the_next_command_speaks_of_the_same_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = [
        "--row-format",
        "fp16",
        "--packed",
        "--orders",
        "1,2",
        "--heads",
        "4",
        "--seed",
        "9",
        "--page-size",
        "8KiB",
    ]
    assert run(tmp_path / "a", "--table", "123456789", "--layout", "engram", *shape) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    again = command[command.index("--table") : -1]
    assert again[:4] == ["--table", "123456789", "--layout", "engram"]
    assert run(tmp_path / "b", *again) == 0
    assert table_file.read_header(tmp_path / "b") == table_file.read_header(tmp_path / "a")


def test_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    assert run(path, "--size", "8MiB") == 0
    assert path.stat().st_size == 8 * 2**20
    assert "--uniform" in capsys.readouterr().out
    assert table_file.read_header(path).layout is None
    assert doctor.holes_in(path, 0, 2**62) is None
    assert run(tmp_path / "b", "--size", "1000000", "--page-size", "512") == 0
    assert (tmp_path / "b").stat().st_size == 999_936  # whole pages


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "give either --table"),
        (["--table", "1M", "--size", "1MiB"], 2, "give either --table"),
        (["--table", "1M", "--layout", "engram", "--slots", "4"], 2, "--slots belongs to pagegram"),
        (["--table", "1M", "--layout", "engram,flat"], 2, "engram,flat"),
        (["--table", "10"], 2, "too small"),
        (["--table", "1M", "--page-size", "2MiB"], 2, "power of two from 512"),
        (["--size", "8191"], 2, "too small for a header"),
        (["--size", "1MiB", "--heads", "4"], 2, "--heads belongs to --table"),
        (["--size", "1MiB", "--packed"], 2, "--packed belongs to --table"),
        (["--size", "0"], 2, "not above 0"),
        (["--size", "1000TiB"], 1, "needs 1000 TiB and the disk has"),
        (["--table", "1T", "--row-format", "fp32", "--dim", "1000000", "--layout", "flat"], 1, "free; choose another"),
        (["--size", "1MiB", "--force"], 2, "--force"),
        (["--table", "1M", "--model", "gemma-ple"], 2, "give either --table"),
        (["--size", "1MiB", "--model", "gemma-ple"], 2, "give either --table"),
        (["--model", "nobody"], 2, "model 'nobody' is not known"),
        (["--model", "lngram"], 2, "hidden states"),
        (["--model", "gemma-ple", "--layout", "engram"], 2, "--layout describes our layouts"),
        (["--model", "gemma-ple", "--slots", "4"], 2, "--slots describes our layouts"),
        (["--model", "gemma-ple", "--packed"], 2, "--packed describes our layouts"),
        (["--model", "gemma-ple", "--row-format", "nf4"], 2, "no row format 'nf4'"),
        (["--model", "gemma-ple", "--aligned"], 2, "--aligned goes with --repack"),
        (["--model", "gemma-ple", "--files", "nothing-here"], 1, "no such file"),
        (["--table", "1M", "--files", "."], 2, "--files goes with --model"),
        (["--size", "1MiB", "--scales", "read"], 2, "--scales goes with --model"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input(
    arguments: list[str], status: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "a", *arguments) == status
    _, err = capsys.readouterr()
    assert words in err and err.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_paths_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    for path, words in (
        (tmp_path / "there", "exists, and nothing is ever replaced"),
        (tmp_path / "link", "not a regular file"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path, "is a folder"),
        ("/dev/null", "not a regular file"),
        ("", "empty"),
        (f"{tmp_path / 'new'}/", "is a folder"),
        (tmp_path / "no" / "where", "there is no such file or folder"),
        (tmp_path / "there" / "a", "not a folder"),
    ):
        assert run(path, "--size", "1MiB") == 1
        _, err = capsys.readouterr()
        assert words in err and err.count("\n") == 1, path
    assert sorted(os.listdir(tmp_path)) == before and (tmp_path / "there").read_text() == "mine"


def started(*arguments: str | os.PathLike[str], limit: int | None = None) -> subprocess.Popen[bytes]:
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-m", "pagegram_io.cli", "mkfile", *map(os.fspath, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limited)


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    process = started(tmp_path / "a", "--size", "64MiB", limit=20 * 2**20)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.decode() == f"pagegram-io: {tmp_path / 'a'}: File too large\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    process = started(tmp_path / "a", "--size", "4GiB")
    deadline = time.monotonic() + 60
    while not any(entry.stat().st_size > 2**23 for entry in tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b"" and b"of 4 GiB; no file is left" in err and b"Traceback" not in err
    assert os.listdir(tmp_path) == []


# ---- --model -------------------------------------------------------------------------------------


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stream of the toy model's ids; the commands know that model."""
    monkeypatch.setitem(deployed.FAMILIES, "toy-engram", engram_family())
    np.random.default_rng(1).integers(0, 1000, 300).astype("<u2").tofile(tmp_path / "toy.u16")
    return tmp_path / "toy.u16"


@pytest.mark.parametrize(
    ("options", "words", "page_count"),
    [
        ([], "fp8 rows, each tensor on a page boundary; scales resident", 27 + 32),
        (["--scales", "read"], "scales read", 27 + 1 + 32 + 1),
        (["--repack"], "fp8 rows with their scales beside them, packed", 28 + 33),
        (["--repack", "--aligned"], "fp8 rows with their scales beside them, aligned", None),
        (["--row-format", "bf16"], "bf16 rows, each tensor on a page boundary\n", None),
        (["--page-size", "8192", "--seed", "7"], "scales resident", None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_model_and_the_command_that_reads_it(
    options: list[str], words: str, page_count: int | None, toy: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "toy.safetensors"
    assert run(path, "--model", "toy-engram", *options) == 0
    out, err = capsys.readouterr()
    header = table_file.read_header(path)
    assert header.model is not None and (header.model.model, header.layout) == ("toy-engram", None)
    layout = header.model.layout(header.page_bytes)
    assert layout is not None and layout.page_count == header.page_count
    assert page_count in (None, header.page_count)
    assert (err, words in out, "as many pages as the table of toy-engram" in out) == ("", True, True)
    command = shlex.split(out.splitlines()[-1].removeprefix("next: pagegram-io "))
    assert command[:5] == ["nvme", "--depth", "64", "--model", "toy-engram"] and command[-1] == str(path)
    assert "--seed" not in command
    assert cli.run([*command, "--tokens", str(toy), "--reads", "200", "--verify", "--json"]) == 0
    (record,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (record["layout"], record["table_pages"]) == ("toy-engram", header.page_count)
    assert record["tokens"] == 200 and record["errors_corrupt"] == 0
    assert cli.run(["verify", str(path)]) == 0
    capsys.readouterr()
    assert cli.run(["inspect", str(path)]) == 0
    assert "the table of toy-engram: rows in " in capsys.readouterr().out
    assert cli.run(["inspect", "--json", str(path)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["content"], record["model"], record["layout"]) == ("pattern", "toy-engram", None)


def test_a_model_where_its_checkpoint_puts_it(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engram_files(tmp_path, "F8_E4M3", 256, scales=True, data_at=8)
    files = ["--model", "toy-engram", "--files", str(tmp_path), "--scales", "read"]
    assert run(tmp_path / "p", *files) == 0
    out = capsys.readouterr().out
    header = table_file.read_header(tmp_path / "p")
    assert header.model is not None and header.model.files and header.model.layout(4096) is None
    assert cli.run(["layout", *files, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pages"] == header.page_count
    command = shlex.split(out.splitlines()[-1].removeprefix("next: pagegram-io "))
    assert command[command.index("--files") + 1] == str(tmp_path)
    assert cli.run([*command, "--tokens", str(toy), "--reads", "50", "--json"]) == 0


def test_a_disk_too_small_for_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """What is said can be done as it is said: the smaller file is made, and the table folds into it."""
    monkeypatch.setattr(table_file, "free_space", lambda name: 5 * 2**20)
    monkeypatch.setitem(deployed.FAMILIES, "toy-engram", engram_family(width=2**16))
    np.arange(300, dtype="<u2").tofile(tmp_path / "toy.u16")
    path = tmp_path / "a b"
    assert run(path, "--model", "toy-engram") == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "the disk has 5 MiB free" in err
    assert os.listdir(tmp_path) == ["toy.u16"]
    make, read = err.split("smaller file: ")[1].strip().split(" && ")
    assert make == shlex.join(["pagegram-io", "mkfile", str(path), "--size", "2MiB"])
    assert cli.run(shlex.split(make)[1:]) == 0
    assert "--wrap" in read
    assert cli.run([*shlex.split(read)[1:], "--tokens", str(tmp_path / "toy.u16"), "--reads", "20"]) == 0
    monkeypatch.setattr(table_file, "free_space", lambda name: 1000)
    for arguments in (["--model", "deepseek-v4.1-flash"], ["--table", "20B"]):
        assert run(tmp_path / "b", *arguments) == 1
        assert capsys.readouterr().err.endswith("free; choose another disk\n")


def test_a_model_of_ids_that_no_shipped_stream_has(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setitem(deployed.FAMILIES, "toy-engram", engram_family())
    assert run(tmp_path / "a", "--model", "toy-engram") == 0
    assert "it has 1,000 ids, and the shipped stream more: add --tokens of its own (none)" in capsys.readouterr().out
