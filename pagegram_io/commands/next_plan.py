"""The command that ``simulate --model`` ends with: the same table, stream and caches, asked for a verdict."""

from __future__ import annotations

import shlex
from typing import Any

from pagegram_io.commands.options import given, option_text

# What decides addresses, stream or caches, and is spelt and means the same in plan.
CARRIED = (
    "files", "scales", "row_format", "page_bytes", "repack", "aligned", "stream_path", "dtype", "eod", "documents",
    "vocabulary", "limit", "requests_path", "tokenizer", "concurrency", "window",
)  # fmt: skip
GOAL = 100  # tokens a second, until somebody says what is wanted


def next_command(values: dict[str, Any]) -> str:
    """The command that turns this result into a verdict, as it can be pasted into a shell."""
    words = ["pagegram-io", "plan", "--model", values["model"]]
    words += ["--cache", ",".join(cache.text for cache in values["caches"])]
    for name in CARRIED:
        if given(name):
            value = values[name]
            words += [option_text(name)] if value is True else [option_text(name), str(value)]
    if given("ranks"):
        words += ["--ranks", str(values["ranks"]), "--split", values["split"]]
    if given("interleave"):
        words += ["--batch", str(values["interleave"])]
    if values["cache_unit"] == "row":
        words += ["--path", "row"]
    return shlex.join([*words, "--goal", str(GOAL)])


def next_lines(values: dict[str, Any], rows: int) -> list[str]:
    """What a verdict needs, and the command that gives it; rows: that a token reads, uncached."""
    batches = [values["interleave"]] if given("interleave") else [1, 8, 32]  # which plan takes where none is given
    steps = ",".join(str(min(rows * batch, 65536)) for batch in batches)
    steps += f" --page-size {values['page_bytes']}" if given("page_bytes") else ""
    return [
        f"For a verdict, put your tokens a second in place of {GOAL} (or give --deadline), and add --device "
        f"drive.jsonl, made by: pagegram-io nvme --uniform --decode --batch {steps} --json DRIVE > drive.jsonl",
        f"next: {next_command(values)}",
    ]
