"""``pagegram-io mkfile``: makes a dense file, replaces nothing, leaves nothing half-made."""

from __future__ import annotations

import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pagegram_io import cli, doctor, table_file
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
