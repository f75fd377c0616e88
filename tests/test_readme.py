"""README, docs and the package data: every command runs as it stands, every Python block too."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def indented_commands(text: str) -> list[str]:
    """Commands of indented blocks, without the shell's prompt and their comments."""
    lines = (line.strip().removeprefix("$ ") for line in text.splitlines() if line.startswith("    "))
    return [line.split("   #")[0].strip() for line in lines if line.startswith("pagegram-io ")]


def is_of_a_device(command: str) -> bool:
    return any(word in command for word in ("nvme", "mkfile", "doctor", "device.jsonl", "drive.jsonl"))


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_readme_opens_with_the_two_commands() -> None:
    lines = [line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    ")]
    assert lines[:2] == ["make demo", "make test"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in indented_commands(README) if not is_of_a_device(c)])
def test_readme_commands(command: str, tmp_path: Path) -> None:
    np.tile(np.arange(1, 1001, dtype="<u2"), 20).tofile(tmp_path / "mine.u16")
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
    commands = [c for c in indented_commands(README) if is_of_a_device(c)]
    assert len(commands) >= 5
    commands.sort(key=lambda c: "mkfile" not in c)  # the file first, since it stands in for the drive
    for command in commands:
        small = command.replace("/dev/nvme0n1", "table.safetensors").replace("20B", "10M")
        if " nvme " in small:
            small = small.replace(" nvme ", " nvme --table 10M --runtime 0.1s --ramp 0 --limit 50K ")
            small = small.replace("1GiB", "1MiB").replace("--repeat 5", "--repeat 2")
        if " plan " in small:  # a table's size is its model's own: few tokens must do
            small = re.sub(" --limit [^ ]+", "", small).replace(" plan ", " plan --limit 20K ")
        if " --decode " in small:  # a hundred steps and more
            small = small.replace("--runtime 0.1s", "--runtime 1s")
        small = small.replace(" figure4 ", " figure4 --table 10M --limit 50K ")
        done = subprocess.run(small, shell=True, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (small, done.stderr)
    assert (folder / "figures" / "table6.csv").read_text().count("\n") > 10
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        (name, block)
        for name in ("README.md", "docs/own_layout.md")
        for block in python_blocks((ROOT / name).read_text())
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
