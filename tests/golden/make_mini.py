#!/usr/bin/env python3
"""Make tests/golden/mini: a trained mini model for the tests, without its FP32 table, beside its packed one.

  pagegram-io figure1 -o figures --train                       the runs; or one of them:
  pagegram-io train --memory pagegram --slots 4 --seed 0 --hash-seed 0 --threads 1 --out mini-pagegram-s4-seed0
  python tests/golden/make_mini.py figures/runs/mini-pagegram-s4-seed0 tests/golden/mini

The folder then holds config.json and model.safetensors of the checkpoint, packed.safetensors (NF4) and losses.jsonl:
the held-out loss on WINDOWS windows with the FP32 table and with the packed one, as `pagegram-io eval` gives it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

WINDOWS = 16


def pagegram_io(*arguments: object) -> str:
    """Standard output of a command."""
    line = [sys.executable, "-c", "from pagegram_io.cli import main; main()", *map(str, arguments)]
    return subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a trained checkpoint (figures/runs/mini-pagegram-s4-seed0)")
    parser.add_argument("output", type=Path, help="the folder to make (tests/golden/mini)")
    arguments = parser.parse_args()
    arguments.output.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(arguments.checkpoint / name, arguments.output / name)
    packed = arguments.output / "packed.safetensors"
    pagegram_io("pack", arguments.checkpoint, "-o", packed)
    common = ("eval", arguments.checkpoint, "--windows", WINDOWS, "--threads", 1, "--json")
    losses = [pagegram_io(*common), pagegram_io(*common, "--table", packed, "--in-ram")]
    (arguments.output / "losses.jsonl").write_text("".join(losses), encoding="utf-8")


if __name__ == "__main__":
    main()
