"""The ``nvme`` command on files: exact reads, records, refusals, Ctrl-C, and that nothing is opened for writing."""

from __future__ import annotations

import json
import os
import pwd
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.mounts import HARNESS

from pagegram_io import native_reader
from pagegram_io.cli import run
from pagegram_io.commands.nvme_notes import notes

# A shared disk stalls at times for longer than any bound that would still catch a fault; a fault fails every time.
pytestmark = pytest.mark.flaky(reruns=2, reruns_delay=2)


PAGES = 3000
RUN = ["--runtime", "0.3s", "--ramp", "0"]


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense file of sealed pages; on this checkout's file system, because tmpfs may have no O_DIRECT."""
    folder = Path(__file__).parent.parent / "build" / "device-tests"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "dense.bin"
    memory = native_reader.aligned_bytes(PAGES * 4096)
    native_reader.fill_pages(memory, 0, 4096, 1)
    path.write_bytes(memory.tobytes())
    subprocess.run(["sync", str(path)], check=True)
    return path


def nvme(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["nvme", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str], status: int, *words: str) -> None:
    capsys.readouterr()
    assert run(["nvme", *arguments]) == status, capsys.readouterr()
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert out == "" and last.startswith("pagegram-io: ") and "Traceback" not in err
    for word in words:
        assert word in last, last


@pytest.mark.parametrize("engine", ["io_uring", "psync"])
@pytest.mark.parametrize("cache", ["none", "1MiB"])
@pytest.mark.parametrize("layout", ["flat", "engram", "pagegram"])
def test_device_reads_are_the_simulated_misses(
    engine: str, cache: str, layout: str, dense: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C32's half: reads counted on the device equal the simulator's misses, exactly."""
    common = ["--layout", layout, "--table", "10M", "--cache", cache, "--limit", "5K"]
    record = nvme([str(dense), *common, "--reads", "5K", "--engine", engine, "--depth", "16"], capsys)[0]
    assert run(["simulate", *common, "--slots", "4", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert record["reads"] == simulated["misses"]
    assert (record["tokens"], record["loops"], record["engine"]) == (5000, 0, engine)
    assert record["stream_sha256"] == simulated["stream_sha256"]
    assert sum(record[key] for key in record if key.startswith("errors_")) == 0


@pytest.mark.parametrize("layout", ["engram", "pagegram"])
def test_a_warm_cache_misses_what_the_simulator_says(
    layout: str, dense: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--layout", layout, "--table", "10M", "--cache", "1MiB", "--warm", "20K"]
    (record,) = nvme([str(dense), *common, "--limit", "30K", "--reads", "5K", "--depth", "16"], capsys)
    assert run(["simulate", *common, "--limit", "25K", "--slots", "4", "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert (record["warm_tokens"], record["tokens"]) == (20_000, 5_000)
    assert record["reads"] == simulated["misses"] < 0.9 * simulated["accesses"]


def test_warm_ups_that_cannot_be(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["nvme", str(dense), "--layout", "flat", "--table", "10M", "--limit", "5K", "--reads", "1K"]
    for more, told in (
        (["--warm", "1K"], "--warm fills a cache"),
        (["--uniform", "--warm", "1K"], "--warm fills a cache"),
        (["--warm", "5K", "--cache", "1MiB"], "leaves none"),
    ):
        words = [word for word in common if "--uniform" not in more or word not in ("--layout", "flat")]
        assert run([*words, *more]) == 2
        assert told in capsys.readouterr().err


def test_record_of_uniform_reads(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (record,) = nvme([str(dense), "--uniform", *RUN, "--depth", "8"], capsys)
    assert record["layout"] == "uniform" and record["direct"] and record["target_kind"] == "file"
    assert record["iops"] == pytest.approx(record["reads"] / record["seconds"])
    assert record["bytes_per_second"] == pytest.approx(record["iops"] * 4096)
    assert 0 < record["latency_min_ns"] <= record["latency_p50_ns"] <= record["latency_p99_ns"]
    assert record["latency_mean_ns"] <= record["latency_max_ns"]
    assert 0.9 < record["littles_law_ratio"] < 1.1  # C21
    assert 4 < record["depth_sustained"] <= 8
    assert not record["interrupted"] and record["zero_page_fraction"] == 0


def test_a_stream_that_ends_starts_again_warm(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--layout", "flat", "--table", "10M", "--limit", "1K", "--cache", "10MiB"]
    (record,) = nvme([str(dense), *common, "--reads", "5K"], capsys)
    assert record["tokens"] == 5000 and record["loops"] == 4
    assert run(["simulate", *common, "--json"]) == 0
    assert record["reads"] == json.loads(capsys.readouterr().out)["compulsory_misses"]  # the cache holds the table


def test_decode_reads_a_step_at_a_time(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [str(dense), "--layout", "pagegram", "--table", "10M", "--limit", "4K", "--decode", "--reads", "4000"]
    one, eight = nvme([*common, "--batch", "1,8", "--jobs", "1"], capsys)
    assert (one["batch"], eight["batch"]) == (1, 8)
    assert (one["steps"], one["reads"]) == (4000, 8000)
    assert (eight["steps"], eight["reads"]) == (500, 8000)
    assert (one["reads_per_step"], eight["reads_per_step"]) == (2.0, 16.0)
    assert 0 < one["step_p50_ns"] <= one["step_p99_ns"] <= one["step_max_ns"]
    assert eight["depth_sustained"] > one["depth_sustained"]


def test_sweeps_repeats_and_jobs(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = nvme([str(dense), "--uniform", *RUN, "--depth", "1,4", "--repeat", "2"], capsys)
    assert [r["depth"] for r in records] == [1, 4, 1, 4]
    (record,) = nvme([str(dense), "--uniform", *RUN, "--depth", "5", "--jobs", "2"], capsys)
    assert record["jobs"] == 2 and record["depth_sustained"] > 3


def test_pages_are_verified(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dense.parent / "table.safetensors"
    path.unlink(missing_ok=True)
    assert run(["mkfile", str(path), "--size", "4MiB"]) == 0
    (good,) = nvme([str(path), "--uniform", *RUN, "--verify"], capsys)
    assert good["reads"] > 0 and good["errors_corrupt"] == 0 and good["base_byte"] > 0
    with open(path, "r+b") as file:  # one flipped bit in each of the first 100 pages
        for page in range(100):
            file.seek(good["base_byte"] + page * 4096 + 77)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 4]))
    (bad,) = nvme([str(path), "--uniform", "--reads", "20K", "--verify", "--max-errors", "100000"], capsys)
    assert bad["errors_corrupt"] == pytest.approx(20_000 * 100 / 1024, rel=0.2)
    assert bad["reads"] + bad["errors_corrupt"] == 20_000
    (stopped,) = nvme([str(path), "--uniform", "--reads", "20K", "--verify", "--max-errors", "10"], capsys)
    assert 11 <= stopped["errors_corrupt"] <= 80 and stopped["reads"] < 20_000


def test_targets_that_cannot_be_measured(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = dense.parent
    sparse, empty, small = folder / "sparse.bin", folder / "empty.bin", folder / "small.bin"
    with open(sparse, "wb") as file:
        file.truncate(1 << 20)
    empty.write_bytes(b"")
    small.write_bytes(b"x" * 4095)
    zeros = folder / "zeros.bin"
    zeros.write_bytes(bytes(1 << 20))
    subprocess.run(["sync", str(zeros)], check=True)
    refused(["/no/such/device"], capsys, 1, "no such file")
    refused([str(folder)], capsys, 1, "folder")
    refused([str(empty)], capsys, 2, "less than one page")
    refused([str(small)], capsys, 2, "less than one page")
    truncated = small.with_name("truncated.safetensors")  # that it is no table file would be a second line
    truncated.write_bytes(small.read_bytes())
    refused([str(truncated)], capsys, 2, "less than one page")
    refused([str(sparse), "--uniform"], capsys, 1, "hole", "--allow-holes")
    refused([str(zeros), "--uniform"], capsys, 1, "zeros", "--allow-zeros")
    refused(["/dev/null"], capsys, 2, "/dev/null")
    refused([str(dense), "--depth", "0"], capsys, 2, "--depth")
    refused([str(dense), "--depth", "32769"], capsys, 2, "32768")
    refused([str(dense), "--depth", "64,0"], capsys, 2, "--depth 0")
    refused([str(dense), "--runtime", "0"], capsys, 2, "no time")
    refused([str(dense), "--uniform", "--layout", "flat"], capsys, 2, "--layout", "--uniform")
    refused([str(dense), "--batch", "8"], capsys, 2, "--decode")
    refused([str(dense), "--decode", "--batch", "8,0"], capsys, 2, "--batch 0", "65536")
    refused([""], capsys, 1, "an empty name")
    refused([str(dense), "--layout", "engram"], capsys, 2, "--wrap")
    refused([str(dense), "--uniform", "--verify"], capsys, 2, "--verify")
    refused([str(dense), "--engine", "nvme"], capsys, 2, "/dev/ng")
    refused([str(dense), "--offset", "1000", "--uniform"], capsys, 2, "1000")
    refused([str(dense), "--offset", "1TiB", "--uniform"], capsys, 2, "offset")
    refused([str(dense), "--runtime", "soon"], capsys, 2, "10s")
    (record,) = nvme([str(sparse), "--uniform", *RUN, "--allow-holes"], capsys)
    assert record["allow_holes"] and record["zero_page_fraction"] == 1


def test_files_in_memory_are_no_devices(
    dense: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagegram_io import doctor

    monkeypatch.setattr(doctor, "filesystem_of", lambda path: "tmpfs")
    refused([str(dense), "--uniform"], capsys, 1, "lies in memory (tmpfs)", "--buffered")
    (record,) = nvme([str(dense), "--uniform", *RUN, "--buffered"], capsys)
    assert not record["direct"]


def test_polled_completions_run_or_are_refused(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 where the device's driver has no poll queues, not a run of errors."""
    with native_reader.Reader(dense, depth=1, engine="io_uring", flags=("iopoll",)) as reader:
        works = reader.read(np.array([0]), native_reader.aligned_bytes(4096))[0] == 4096
    if works:
        assert nvme([str(dense), "--uniform", *RUN, "--iopoll"], capsys)[0]["reads"] > 0
    else:
        refused([str(dense), "--uniform", *RUN, "--iopoll"], capsys, 3, "poll queues")


def test_pages_that_cannot_be_verified_are_not_read(
    dense: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pagegram_io import table_file

    path = dense.parent / "verified.safetensors"
    path.unlink(missing_ok=True)
    header = table_file.write_pattern_file(path, 64)
    refused([str(path), "--uniform", "--verify", "--offset", "8KiB"], capsys, 2, "--offset")
    refused([str(path), "--uniform", "--verify", "--page-size", "8KiB"], capsys, 2, "--page-size")
    apart = replace(header, sealed=False)
    monkeypatch.setattr(table_file, "read_header", lambda path: apart)
    refused([str(path), "--uniform", "--verify"], capsys, 2, "apart", "--verify")


def test_percentiles_asked_for_are_in_table_and_record(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [str(dense), "--uniform", "--reads", "2000", "--percentiles", "9.9,95,99.99"]
    (record,) = nvme(common, capsys)
    names = ("min", "p9_9", "p50", "p90", "p95", "p99", "p999", "p9999")
    latencies = [record[f"latency_{name}_ns"] for name in names]
    assert latencies == sorted(latencies)
    assert run(["nvme", *common]) == 0
    heading = capsys.readouterr().out.splitlines()[1]
    assert re.search(r" p9.9 us +p95 us +p99.99 us ", heading)


@pytest.mark.root
def test_no_permission(dense: Path, tmp_path: Path) -> None:
    """As an ordinary user: a file and a device node that only root may read."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    tmp_path.chmod(0o755)
    shutil.copy(dense, tmp_path / "file")
    os.chmod(tmp_path / "file", 0o600)
    os.mknod(tmp_path / "node", 0o600 | stat.S_IFBLK, os.makedev(7, 0))
    nobody = pwd.getpwnam("nobody")
    code = f"""
import os, sys
from pagegram_io import cli, device, doctor, table_file
from pagegram_io.commands import nvme, mkfile, nvme_table
os.chdir({str(tmp_path)!r})
os.setgroups([]); os.setgid({nobody.pw_gid}); os.setuid({nobody.pw_uid})
cli.main(sys.argv[1:])
"""
    for arguments, words in (
        (["nvme", "file", "--uniform"], "permission denied"),
        (["nvme", "node", "--uniform"], "(most often disk), or use sudo"),
        (["mkfile", "new", "--size", "1MiB"], "permission denied"),
    ):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stdout == "", done.stderr
        assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["file", "node"]


def test_a_table_larger_than_the_target_is_left_out_or_wrapped(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nvme", str(dense), *RUN, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["layout"] for line in out.splitlines()] == ["uniform"]
    assert err.count("left out") == 3
    (record,) = nvme([str(dense), *RUN, "--layout", "pagegram", "--wrap"], capsys)
    assert record["wrapped"] and record["lookups_per_second"] > 0


def start(dense: Path, *arguments: str) -> subprocess.Popen[str]:
    code = "import sys; from pagegram_io.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "nvme", str(dense), "--uniform", "--json", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_ctrl_c_at_200_moments_after_the_first_read(dense: Path, tmp_path: Path) -> None:
    """Always a valid record, the same in the file, exit 130, no traceback and nothing left."""
    (tmp_path / "runs").mkdir()
    program = [sys.executable, HARNESS / "interrupted.py", dense, tmp_path / "runs", "100"]
    pair, found = [], []
    for seed in ("1", "2"):
        with open(tmp_path / seed, "w") as out:
            pair.append(subprocess.Popen([*program, seed], stdout=out))
    assert [process.wait(900) for process in pair] == [0, 0]
    for seed in ("1", "2"):
        found += [json.loads(line) for line in (tmp_path / seed).read_text().splitlines()]
    assert len(found) == 200
    brought = 0
    for each in found:
        assert each["status"] == 130, each
        assert re.fullmatch(r"(note: .*\n)*pagegram-io: interrupted after \d+ of \d+ runs\n", each["err"]), each
        records = [json.loads(line) for line in each["out"].splitlines()]
        assert records and each["out"] == each["kept"] and each["files"] == ["err", "kept.jsonl", "out"], each
        for record in records:
            assert record["kind"] == "nvme" and record["seconds"] > 0, each
            # A disk that stalls may bring no read back in so short a run; then the record says that.
            assert (record["reads"] > 0) == (record["iops"] > 0) == (record["latency_max_ns"] > 0), each
            brought += record["reads"] > 0
        assert not any(record["interrupted"] for record in records[:-1]), each
    assert brought > 150
    assert os.listdir(tmp_path / "runs") == []


@pytest.mark.slow
def test_ctrl_c_at_the_start(dense: Path) -> None:
    """Before the first read: exit 130 and no traceback."""
    moments = random.Random(5)
    for _ in range(12):
        process = start(dense, "--runtime", "20s", "--ramp", "0")
        time.sleep(moments.uniform(0.05, 1.0))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        # Python itself may still be starting: then it is its own exit status, and nothing of ours ran.
        if process.returncode == -signal.SIGINT or "pagegram_io" not in err and process.returncode == 1:
            assert out == ""
            continue
        assert process.returncode == 130 and "Traceback" not in err, (out, err)
        assert all(json.loads(line)["interrupted"] for line in out.splitlines())


def test_nothing_is_opened_for_writing(dense: Path, tmp_path: Path) -> None:
    """C20."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    log = tmp_path / "opens"
    code = "import sys; from pagegram_io.cli import main; main(sys.argv[1:])"
    for arguments in (["nvme", str(dense), "--uniform", *RUN], ["doctor", str(dense)]):
        command = ["strace", "-f", "-e", "trace=open,openat,openat2,creat", "-o", str(log)]
        subprocess.run([*command, sys.executable, "-c", code, *arguments], check=True, capture_output=True)
        opens = [line for line in log.read_text().splitlines() if str(dense) in line]
        assert opens and all("O_RDONLY" in line and "O_WRONLY" not in line and "O_RDWR" not in line for line in opens)


def test_fio_replays_our_iolog(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("fio") is None:
        pytest.skip("needs fio")
    log = tmp_path / "reads.iolog"
    arguments = ["--layout", "pagegram", "--table", "10M", "--limit", "500", "--format", "fio-iolog"]
    assert run(["trace", *arguments, "--target", str(dense), "-o", str(log)]) == 0
    command = ["fio", "--name=replay", f"--read_iolog={log}", "--ioengine=psync", "--direct=1", "--readonly",
               "--replay_no_stall=1", "--output-format=json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    assert job["read"]["total_ios"] == 1000 and job["write"]["total_ios"] == 0


def test_percentiles_are_those_of_the_histogram() -> None:
    from pagegram_io.device import percentile

    lows = native_reader.histogram_lows()
    rng = np.random.default_rng(0)
    values = np.sort((rng.lognormal(11, 1, 200_000)).astype(np.uint64))
    counts = np.bincount(np.searchsorted(lows, values, side="right") - 1, minlength=len(lows)).astype(np.uint64)
    for share in (0.001, 0.5, 0.9, 0.99, 0.999, 1.0):
        exact = int(values[max(1, int(np.ceil(share * len(values)))) - 1])
        assert percentile(counts, share) == pytest.approx(exact, rel=1 / 128, abs=1)
    assert percentile(np.zeros_like(counts), 0.5) == 0


def row_of(**changes: Any) -> dict[str, Any]:
    return {
        "mode": "throughput", "layout": "flat", "depth": 64, "depth_sustained": 64.0, "seconds": 10.0, "tokens": 9,
        "limited_by": "device", "iops_by_second": [100, 110], "nr_requests": 256, "interrupted": False, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 1024, "depth_sustained": 289.0}, "289 reads were in flight on average; .*nr_requests=256"),
        ({"depth_sustained": 9.0, "nr_requests": None}, "9 reads were in flight on average; they ended"),
        ({"depth_sustained": 9.0, "limited_by": "cpu"}, "--jobs"),
        ({"tokens": 0}, "no lookup was completed; give a longer --runtime"),
        ({"mode": "decode", "steps": 99, "depth_sustained": 2.0}, "99 steps, and plan wants 100"),
        ({"iops_by_second": [100, 301]}, "unsteady, from 100 to 301 reads in a second; repeat"),
    ],
)
def test_notes_of_doubtful_runs(changes: dict[str, Any], words: str) -> None:
    (note,) = notes([row_of(), row_of(**changes)])
    assert re.search(words, note) and "more of these" not in note
    (note,) = notes([row_of(**changes)] * 3)
    assert note.endswith("(and 2 more of these runs)")
    assert notes([row_of(**changes, interrupted=True)]) == []


def test_runs_without_doubt_have_no_notes() -> None:
    short = row_of(seconds=0.3, depth_sustained=9.0, iops_by_second=[1])
    assert notes([row_of(), short, row_of(layout="uniform", tokens=None), row_of(mode="decode", steps=100)]) == []
