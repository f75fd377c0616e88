"""README, docs and the package data: every command runs as it stands, every Python block too."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from harness.checkpoints import bare_deepseek

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def indented_commands(text: str) -> list[str]:
    """Commands of indented blocks, without the shell's prompt and their comments."""
    lines = (line.strip().removeprefix("$ ") for line in text.splitlines() if line.startswith("    "))
    return [line.split("   #")[0].strip() for line in lines if line.startswith("pagegram-io ")]


def is_of_a_device(command: str) -> bool:
    return any(word in command for word in ("nvme", "mkfile", "doctor", "device.jsonl", "drive.jsonl"))


def is_of_a_run(command: str) -> bool:
    """Does it make, or need, the model that README trains?"""
    return bool(re.search(r"\brun(\.safetensors)?\b|notes\.u16", command))


def put_inputs(folder: Path, command: str = "") -> None:
    """The files that README's commands take for granted, but for what the command itself makes."""
    np.tile(np.arange(1, 1001, dtype="<u2"), 20).tofile(folder / "mine.u16")
    if "-o mine.u32" not in command:
        np.tile(np.arange(2, 1001, dtype="<u4"), 20).tofile(folder / "mine.u32")
    (folder / "notes.txt").write_text("A note, and another note.\n" * 20)
    request = {"prompt": list(range(1, 300)), "completion": [7, 8, 9]}
    (folder / "log.jsonl").write_text("".join(json.dumps(request) + "\n" for _ in range(40)))
    (folder / "DeepSeek-V4.1-Flash").mkdir()
    bare_deepseek(folder / "DeepSeek-V4.1-Flash")


def pages_with_commands() -> list[str]:
    return [README, (ROOT / "docs" / "deployed.md").read_text()]


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_readme_opens_with_the_two_commands() -> None:
    lines = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    ")]
    assert lines[:2] == ["make demo", "make test"]


ALONE = [c for page in pages_with_commands() for c in indented_commands(page)]
ALONE = [c for c in dict.fromkeys(ALONE) if not is_of_a_device(c) and not is_of_a_run(c)]


@pytest.mark.slow
@pytest.mark.parametrize("command", ALONE)
def test_readme_commands(command: str, tmp_path: Path) -> None:
    put_inputs(tmp_path, command)
    words = shlex.split(command)
    code = "import sys; from pagegram_io.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = re.search(re.escape(f"$ {command}") + r"\n((?:    .+\n)+)", README)
    if shown:  # README shows what it prints
        expected = [line.split() for line in shown[1].splitlines()]
        assert [line.split() for line in done.stdout.splitlines()][: len(expected)] == expected


@pytest.mark.slow
def test_readme_device_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, on a file in place of a drive, and with a small table: 13 GB are not written in a test."""
    folder = ROOT / "build" / "readme-tests"  # not the temporary folder, which may lie in memory
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    commands = [c for page in pages_with_commands() for c in indented_commands(page) if is_of_a_device(c)]
    commands = list(dict.fromkeys(commands))
    assert len(commands) >= 7
    commands.sort(key=lambda c: "mkfile" not in c)  # the file first, since it stands in for the drive
    for command in commands:
        small = command.replace("/dev/nvme0n1", "table.safetensors").replace("20B", "10M")
        if " nvme " in small:
            runtime = "1s" if "--decode" in small else "0.1s"  # a plan wants a hundred steps
            small = re.sub(r" --runtime \S+", "", small)
            table = "" if "--model" in small else "--table 10M "
            small = small.replace(" nvme ", f" nvme {table}--runtime {runtime} --ramp 0 --limit 50K ")
            small = small.replace("1GiB", "1MiB").replace("--repeat 5", "--repeat 2").replace("5M", "10K")
        if " plan " in small:  # a table's size is its model's own: few tokens must do
            limit = "200K" if "--table" in small else "20K"
            small = re.sub(" --limit [^ ]+", "", small).replace(" plan ", f" plan --limit {limit} ")
        if " plan " in small and "--table" in small:
            small = small.replace("1GiB", "1MiB")
        if "--model" not in small:
            small = small.replace(" figure4 ", " figure4 --table 10M --limit 50K ")
        done = subprocess.run(small, shell=True, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (small, done.stderr)
    assert (folder / "figures" / "table6.csv").read_text().count("\n") > 10
    shutil.rmtree(folder)


@pytest.mark.slow
def test_readme_trains_packs_and_reads_from_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, on a real disk; then the Python block that opens the table."""
    folder = ROOT / "build" / "readme-run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    put_inputs(folder)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    commands = [c for c in indented_commands(README) if is_of_a_run(c)]
    assert len(commands) >= 9
    losses = {}
    for command in commands:
        words = f"{command} --json" if " eval " in command else command
        done = subprocess.run(words, shell=True, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)
        if words != command:
            losses[command] = json.loads(done.stdout)["loss"]
    fp32, in_ram, on_flash = losses.values()
    assert in_ram == on_flash != fp32  # to the last bit
    (block,) = [block for block in python_blocks(README) if "Table.open" in block]
    done = subprocess.run([sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        (name, block)
        for name in ("README.md", "docs/own_layout.md")
        for block in python_blocks((ROOT / name).read_text())
        if "Table.open" not in block  # which needs a table: see above
    ],
    ids=lambda value: value if value.endswith(".md") else "",
)
def test_python_blocks(name: str, block: str, tmp_path: Path) -> None:
    """C15 for the layout of one's own: through pages, simulator and the figure; and through training."""
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if "TrainJob" in block:
        assert done.stdout.startswith("one page ") and 5 < float(done.stdout.split()[-1]) < 8
    elif name == "docs/own_layout.md":
        assert len([line for line in block.splitlines() if line.strip()]) <= 25
        assert 0.2 < float(done.stdout) < 0.6
        assert (tmp_path / "own_layout.png").stat().st_size > 20_000


def test_links_and_files_named_in_the_docs_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} names {target}"
