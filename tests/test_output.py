"""New files: whole under their name, or not there at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pagegram_io.output import new_file, new_path, refuse_folder
from pagegram_io.table_file import refuse_target


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with new_file(path) as file:
        file.write(b"one")
        assert not path.exists()
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("name", ["a.png", "a", ".hidden", "a.", "a.b.c", "é" * 120 + ".npy", "x" * 250])
def test_the_temporary_path_lies_beside_and_keeps_the_suffix(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with new_path(str(path)) as temporary:
        assert temporary.suffix == path.suffix
        assert temporary.parent == tmp_path and temporary != path
        temporary.write_text("one")
    assert path.read_text() == "one"
    assert os.listdir(tmp_path) == [name]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with new_file(tmp_path / "a"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("failure", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), MemoryError()])
@pytest.mark.parametrize("force", [False, True])
def test_a_failure_leaves_what_was_there(tmp_path: Path, failure: BaseException, force: bool) -> None:
    path = tmp_path / "a"
    if force:
        path.write_bytes(b"old")
    with pytest.raises(type(failure)) as caught, new_file(path, force=force) as file:
        file.write(b"new")
        raise failure
    assert caught.value is failure
    assert os.listdir(tmp_path) == (["a"] if force else [])
    assert not force or path.read_bytes() == b"old"


def test_existing_files_need_force(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError, match="--force") as caught, new_file(path):
        pytest.fail("not reached")
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["a"]
    with new_file(path, force=True) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(FileExistsError), new_file(path) as file:
        file.write(b"new")
        path.write_bytes(b"another's")
    assert path.read_bytes() == b"another's"
    assert os.listdir(tmp_path) == ["a"]


def test_nothing_but_files_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for path, kind in (
        ("/dev/null", FileExistsError),
        (tmp_path / "pipe", FileExistsError),
        (tmp_path / "folder", IsADirectoryError),
    ):
        with pytest.raises(kind) as caught, new_file(path, force=True):
            pytest.fail("not reached")
        assert caught.value.filename == str(path)
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    link.symlink_to(target)
    with new_file(link) as file:  # it points to nothing yet
        file.write(b"one")
    assert link.is_symlink() and target.read_bytes() == b"one"
    with pytest.raises(FileExistsError), new_file(link):
        pytest.fail("not reached")
    with new_file(link, force=True) as file:
        file.write(b"two")
    assert link.is_symlink() and target.read_bytes() == b"two"


def test_errors_name_the_final_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, kind in (
        (tmp_path / "missing" / "a.csv", FileNotFoundError),
        (tmp_path / "file" / "a.csv", NotADirectoryError),
        (tmp_path / ("x" * 300), OSError),
    ):
        with pytest.raises(kind) as caught, new_file(path):
            pytest.fail("not reached")
        assert caught.value.filename == str(path)
    path = tmp_path / "a.csv"
    with pytest.raises(OSError) as full, new_path(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert (full.value.errno, full.value.filename) == (errno.ENOSPC, str(path))
    with pytest.raises(FileNotFoundError) as other, new_path(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/another")
    assert other.value.filename == "/another"
    with pytest.raises(BrokenPipeError) as pipe, new_path(path):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    assert pipe.value.filename is None
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("size", [100_000, 4_000_000])  # fails in the last flush, and in the writing
def test_a_file_that_cannot_grow_leaves_nothing(tmp_path: Path, size: int) -> None:
    code = f"""
import resource
from pagegram_io.output import new_file, refuse_folder
from pagegram_io.table_file import refuse_target
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    with new_file("out.bin") as file:
        for _ in range({size} // 1000):
            file.write(bytes(1000))
except OSError as error:
    print(error.errno, error.filename)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG), "out.bin"]
    assert os.listdir(tmp_path) == []


def test_a_read_only_file_system_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = os.statvfs(tmp_path).f_flag & ~os.ST_RDONLY
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for more, number in ((0, errno.EACCES), (os.ST_RDONLY, errno.EROFS)):
        monkeypatch.setattr(os, "statvfs", lambda path, f_flag=flags | more: SimpleNamespace(f_flag=f_flag))
        for refuse in (refuse_folder, lambda folder: refuse_target(os.path.join(folder, "new"))):
            with pytest.raises(OSError) as caught:
                refuse(str(tmp_path))
            assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path))
