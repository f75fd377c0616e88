"""Interrupts ``nvme`` at random moments after its first read, many times: each a process of its own, forked from this
one so that Python starts once.

python interrupted.py FILE FOLDER COUNT SEED: a JSON object a process on stdout: moment_s, status, out, err, kept.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

from pagegram_io import cli, native_reader
from pagegram_io.commands import nvme, nvme_table  # noqa: F401  (imported once, here)

LAYOUT = ["--table", "10M", "--limit", "2K"]
SHORT = ["--repeat", "1000", "--runtime", "0.03s", "--ramp", "0.01s"]  # many borders between runs, ramps and printing
COMMANDS = [
    ["--uniform", "--ramp", "0.2s"],
    ["--uniform", *SHORT],
    ["--uniform", *SHORT, "--engine", "psync", "--depth", "8"],
    ["--layout", "pagegram", *LAYOUT, "--cache", "1MiB", "--jobs", "2", *SHORT],
    ["--layout", "engram", *LAYOUT, "--decode", "--batch", "4", "--ramp", "0.1s"],
    ["--layout", "flat", *LAYOUT, "--reads", "1T"],
]
SECONDS_MAX = 0.4
PATIENCE_SECONDS = 60.0


def be_nvme(arguments: list[str], started: int, out: Path, err: Path) -> None:
    """The child: the command itself, which tells of its first measured read."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    for name in ("pump", "steps"):
        real = getattr(native_reader.Reader, name)

        def told(*given: object, real: object = real, **named: object) -> object:
            result = real(*given, **named)  # type: ignore[operator]
            os.write(started, b".")
            return result

        setattr(native_reader.Reader, name, told)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main(["nvme", *arguments])


def interrupt(arguments: list[str], moment_s: float, folder: Path) -> dict[str, object]:
    """One process, from its start to its end. Status is as a shell has it, or None where it had to be killed."""
    folder.mkdir()
    out, err, kept = (folder / name for name in ("out", "err", "kept.jsonl"))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # nobody reads after the first byte
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            be_nvme([*arguments, "--json", "--output", str(kept)], writer, out, err)
        except Exception:
            traceback.print_exc()
            os._exit(99)
    os.close(writer)
    select.select([reader], [], [], PATIENCE_SECONDS)
    time.sleep(moment_s)
    os.kill(child, signal.SIGINT)
    until, status = time.monotonic() + PATIENCE_SECONDS, None
    while status is None:
        ended, raw = os.waitpid(child, os.WNOHANG)
        if ended:
            status = os.waitstatus_to_exitcode(raw)
        elif time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        else:
            time.sleep(0.005)
    os.close(reader)
    found = {
        "arguments": arguments, "moment_s": moment_s, "status": status, "out": out.read_text(),
        "err": err.read_text(), "kept": kept.read_text() if kept.exists() else None,
        "files": sorted(os.listdir(folder)),
    }  # fmt: skip
    shutil.rmtree(folder)
    return found


def main(target: str, folder: str, count: str, seed: str) -> None:
    moments = random.Random(int(seed))
    for number, options in zip(range(int(count)), itertools.cycle(COMMANDS), strict=False):
        place = Path(folder) / f"{seed}-{number}"
        print(json.dumps(interrupt([target, *options], moments.uniform(0, SECONDS_MAX), place)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
