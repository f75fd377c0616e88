"""The command line: exit statuses, one line for every mistake, nothing written, and what import costs (C30)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pagegram_io.cli import run

QUICK = ["--table", "10M", "--limit", "2K", "--cache", "1MiB"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, so that anything written by mistake is seen."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str], folder: Path, status: int = 2, *words: str
) -> None:
    """The command fails with this status and one line that holds the words, and leaves the folder as it was."""
    before = sorted(folder.rglob("*"))
    assert run(arguments) == status, capsys.readouterr()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pagegram-io: ") and err.count("\n") == 1 and "Traceback" not in err, err
    for word in words:
        assert word in err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("size", ["20b", "-1", "0", "1e30", "NaN", "", " ", "20 B", "0x10", "1.5", "inf", "20B,"])
def test_table_sizes_that_are_none(size: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["simulate", "--table", size, "--limit", "1K"], capsys, folder, 2, "--table")


@pytest.mark.parametrize("size", ["10%%", "101%", "0%", "0", "-1", "1gib", "NaN", "1e30", "64MiB,,1GiB", "%"])
def test_cache_sizes_that_are_none(size: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["simulate", "--cache", size, "--limit", "1K"], capsys, folder, 2, "--cache")


def test_a_gigabyte_is_not_a_gibibyte(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--table", "10M", "--limit", "2K", "--cache", "1GB,1GiB", "--json"]) == 0
    sizes = {json.loads(line)["cache_bytes"] for line in capsys.readouterr().out.splitlines()}
    assert sizes == {10**9, 2**30}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--cache", "4095"], "4095"),
        (["--slots", "0"], "0 slots"),
        (["--slots", "-4"], "--slots"),
        (["--heads", "0"], "heads 0"),
        (["--row-width", "63"], "63"),
        (["--dim", "383"], "383"),
        (["--page-size", "5000"], "5000"),
        (["--page-size", "256"], "256"),
        (["--orders", "3,2"], "3,2"),
        (["--orders", "2,9"], "2,9"),
        (["--orders", "2,2"], "2,2"),
        (["--row-format", "nf5"], "nf5"),
        (["--layout", "engrams"], "engrams"),
        (["--base-byte", "4096"], "base byte"),
        (["--seed", "-1"], "--seed"),
        (["--warm", "2K"], "--warm"),
        (["--warm", "5000"], "5000"),
        (["--limit", "0"], "--limit"),
        (["--threads", "0"], "--threads"),
        (["--eod", "65536"], "65536"),
        (["--eod", "0", "--documents", "starts.txt"], "documents"),
        (["--plot", "plot.jpg"], ".png"),
        (["--policy", "arc"], "arc"),
        (["--cache-unit", "row", "--curve"], "--curve"),
        (["--name", "mine"], "--pages"),
        (["--no-such-option"], "no-such-option"),
    ],
)
def test_options_that_cannot_be(
    arguments: list[str], word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["simulate", *QUICK, *arguments], capsys, folder, 2, word)


@pytest.mark.parametrize("params", ["1", "1000", "20000"])
def test_a_table_too_small_for_its_shape(params: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["simulate", "--table", params, "--limit", "1K"], capsys, folder, 2, "too small")


def test_more_slots_than_fit_in_a_page_cost_and_say_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *QUICK, "--slots", "60", "--layout", "pagegram", "--cache", "none"]) == 0
    out, err = capsys.readouterr()
    assert "8.0000" in out and "8 reads, not 2" in err


def test_a_cache_larger_than_the_table_is_fine_and_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", *QUICK, "--cache", "1TiB"]) == 0
    assert "holds the whole table" in capsys.readouterr().err


def test_a_cache_that_still_fills_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "--table", "20B", "--limit", "2K", "--layout", "flat", "--cache", "1GiB"]) == 0
    assert "never filled" in capsys.readouterr().err


def write_ids(path: str, ids: list[int], dtype: str = "<u2") -> str:
    np.array(ids, dtype).tofile(path)
    return path


def bad_streams() -> list[tuple[str, Callable[[], object], list[str], str]]:
    """(name, how to make the file, more options, a word of the sentence)."""
    return [
        ("none.u16", lambda: None, [], "no such file"),
        ("empty.u16", lambda: write_ids("empty.u16", []), [], "empty"),
        ("odd.u16", lambda: Path("odd.u16").write_bytes(b"123"), [], "odd.u16"),
        ("high.u16", lambda: write_ids("high.u16", [1, 2, 700, 3]), ["--vocab", "700"], "700"),
        ("folder.u16", lambda: Path("folder.u16").mkdir(), [], "folder"),
        ("cut.u16.xz", lambda: Path("cut.u16.xz").write_bytes(b"\xfd7zXZ\0\0\4\xe6\xd6"), [], "cut.u16.xz"),
        ("text.npy", lambda: Path("text.npy").write_text("hello"), [], "text.npy"),
        ("float.npy", lambda: np.save("float.npy", np.ones(5)), [], "integers"),
        ("square.npy", lambda: np.save("square.npy", np.ones((5, 5), np.uint16)), [], "square.npy"),
        ("negative.npy", lambda: np.save("negative.npy", np.array([1, -2, 3])), [], "-2"),
        ("words.txt", lambda: Path("words.txt").write_text("1 2 3"), [], ".u16"),
    ]


@pytest.mark.parametrize("case", bad_streams(), ids=lambda case: case[0])
def test_streams_that_cannot_be_read(
    case: tuple[str, Callable[[], object], list[str], str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, make, more, word = case
    make()
    refused(["simulate", *QUICK, "--tokens", name, *more], capsys, folder, 1, word)


@pytest.mark.parametrize("starts", ["0\n3\n2\n", "0\n100\n", "1\n2\n", "0\nx\n", "", "0\n-1\n", "0\n0\n"])
def test_documents_out_of_order_or_past_the_end(starts: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ids("ids.u16", list(range(20)))
    Path("starts.txt").write_text(starts)
    options = ["--tokens", "ids.u16", "--documents", "starts.txt"]
    refused(["simulate", "--table", "10M", "--cache", "1MiB", *options], capsys, folder, 1, "starts.txt")


@pytest.mark.parametrize("count", [1, 2])
def test_a_stream_shorter_than_the_order_has_no_nan(
    count: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ids("ids.u16", [7] * count)
    assert run(["simulate", "--table", "10M", "--cache", "1MiB,none", "--tokens", "ids.u16", "--json"]) == 0
    out = capsys.readouterr().out
    assert "NaN" not in out and "Infinity" not in out
    records = [json.loads(line) for line in out.splitlines()]
    assert {r["tokens"] for r in records} == {count}
    assert all(0 <= r["hit_rate"] <= 1 and r["misses"] <= r["accesses"] for r in records)
    assert run(["simulate", "--table", "10M", "--cache", "1MiB", "--tokens", "ids.u16"]) == 0
    assert "nan" not in capsys.readouterr().out.lower()


def test_no_permission(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ids("ids.u16", [1, 2, 3])
    os.chmod("ids.u16", 0)
    if os.access("ids.u16", os.R_OK):  # root reads everything: ask as somebody else, once all is imported
        folder.chmod(0o755)
        code = (
            "import os, sys, pagegram_io.commands.simulate, pagegram_io.job, pagegram_io.progress\n"
            "from pagegram_io.cli import run\n"
            "os.setuid(65534)\n"
            "sys.exit(run(['simulate', '--limit', '2K', '--tokens', 'ids.u16']))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        assert "permission denied" in done.stderr and done.stderr.count("\n") == 1
    else:
        refused(["simulate", *QUICK, "--tokens", "ids.u16"], capsys, folder, 1, "ermission denied")


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", *QUICK, "--csv", "out.csv"],
        ["simulate", *QUICK, "--plot", "out.png"],
        ["simulate", *QUICK, "--layout", "flat", "--curve-npy", "out.npy"],
        ["layout", "--csv", "out.csv"],
        ["trace", "--layout", "flat", "--table", "10M", "--limit", "1K", "-o", "out.npy"],
    ],
)
def test_outputs_that_exist_are_kept(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = arguments[-1]
    Path(name).write_text("mine")
    refused(arguments, capsys, folder, 1, name, "--force")
    assert Path(name).read_text() == "mine"
    assert run([*arguments, "--force"]) == 0
    assert Path(name).read_bytes() != b"mine"


def test_an_output_folder_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["simulate", *QUICK, "--csv", "no/out.csv"], capsys, folder, 1, "no such file or folder")
    refused(["trace", "--layout", "flat", "-o", "no/out.npy"], capsys, folder, 1, "no such file or folder")


def test_a_full_disk_leaves_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        for arguments in (
            ["trace", "--layout", "engram", "--table", "10M", "--limit", "100K", "-o", str(small / "big.npy")],
            ["simulate", *QUICK, "--curve", "--plot", str(small / "big.png")],
            ["figure4", "--table", "10M", "--limit", "5K", "-o", str(small / "figures")],
        ):
            refused(arguments, capsys, small, 1, "disk is full")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_pages_that_are_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    simulate = ["simulate", "--cache", "1MiB", "--pages"]
    np.save("float.npy", np.ones((4, 2)))
    np.save("negative.npy", np.array([[1, -1]]))
    np.save("none.npy", np.full((3, 2), 0xFFFFFFFF, np.uint32))
    np.save("good.npy", np.arange(8, dtype=np.uint32).reshape(4, 2))
    Path("cut.npy").write_bytes(Path("good.npy").read_bytes()[:-3])
    Path("cut.u32").write_bytes(b"12345")
    for name, status, word in (
        ("float.npy", 2, "float64"),
        ("negative.npy", 2, "negative"),
        ("none.npy", 2, "unused"),
        ("cut.npy", 1, "cut.npy"),
        ("cut.u32", 1, "cut.u32"),
        ("missing.npy", 1, "no such"),
    ):
        refused([*simulate, name], capsys, folder, status, word)
    refused([*simulate, "good.npy", "--by", "order"], capsys, folder, 2, "--pages")
    assert run([*simulate, "good.npy", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["accesses"], record["misses"], record["tokens"], record["layout"]) == (8, 8, 4, "good")


def test_a_trace_of_ours_simulates_to_the_same_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "--layout", "engram", "--table", "10M", "--limit", "20K", "-o", "pages.npy"]) == 0
    capsys.readouterr()
    assert run(["simulate", "--pages", "pages.npy", "--cache", "1MiB,none", "--json"]) == 0
    ours = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (
        run(["simulate", "--layout", "engram", "--table", "10M", "--limit", "20K", "--cache", "1MiB,none", "--json"])
        == 0
    )
    direct = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    same = ("layout", "table_params", "cache_bytes", "accesses", "misses", "misses_second_half", "compulsory_misses",
            "stream_sha256", "pages", "reads_per_token", "read_amplification", "cache_full_at_token")  # fmt: skip
    assert [[r[key] for key in same] for r in ours] == [[r[key] for key in same] for r in direct]


def test_json_and_csv_hold_the_same_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pagegram_io.record_files import read_records

    assert run(["simulate", *QUICK, "--cache", "1MiB,10%", "--by", "order", "--json", "--csv", "out.csv"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert read_records("out.csv") == printed
    assert {r["order"] for r in printed} == {2, 3}


def test_figure4_is_drawn_again_from_its_records_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """C31."""
    assert run(["figure4", "-o", "one", "--table", "10M,40M", "--limit", "5K", "--formats", "png,svg"]) == 0
    assert run(["figure4", "-o", "two", "--records", "one/figure4.jsonl", "--formats", "png,svg"]) == 0
    for name in ("figure4.png", "figure4.svg"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()
    assert not Path("two/figure4.jsonl").exists()
    refused(["figure4", "-o", "one", "--table", "10M", "--limit", "5K"], capsys_drained(capsys), folder, 1, "--force")


def capsys_drained(capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    capsys.readouterr()
    return capsys


def test_help_of_every_command_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    import click

    from pagegram_io.cli import COMMANDS, group

    assert run(["--help"]) == 0 and run(["--version"]) == 0
    capsys.readouterr()
    assert run([]) == 2
    capsys.readouterr()
    for name in COMMANDS:
        assert run([name, "--help"]) == 0
        assert "Examples:" in capsys.readouterr().out
        command = group.get_command(click.Context(group), name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, option.name
                assert option.is_flag or "[e.g. " in option.help, f"{name} --{option.name} has no example"
    refused(["simulat"], capsys, Path.cwd() / "tests", 2, "simulat")


def test_import_is_light_and_help_is_quick() -> None:
    code = "import sys, pagegram_io, pagegram_io.cli; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "pandas", "matplotlib", "numpy", "rich"} & set(loaded)


def test_ctrl_c_stops_at_once_and_says_how_far_it_got(tmp_path: Path) -> None:
    arguments = ["simulate", "--table", "3.2B,10B,20B", "--cache", "1GiB", "--csv", str(tmp_path / "out.csv")]
    code = f"import sys; from pagegram_io.cli import run; sys.exit(run({arguments!r}))"
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    time.sleep(3)  # the stream is read in two seconds or so; the simulations take many more
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, (out, err)
    assert err.count("\n") == 1 and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_name_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    name = tmp_path / "d\u00e9"
    command = [sys.executable, "-m", "pagegram_io.cli", "mkfile", name, "--size", "64KiB"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert rb"d\xe9: 65,536 bytes" in done.stdout
