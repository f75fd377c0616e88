"""The C core without Python: its own tests under sanitizers, no warning, and libpgio as C and C++ programs use it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import make_stream

from pagegram_io import native, native_caches
from pagegram_io.layout import Shape, pagegram

ROOT = Path(__file__).resolve().parent.parent
BESIDE = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ["PATH"]]
)  # where the dev extra puts cmake, ninja
TESTS = {path.stem for path in (ROOT / "tests" / "c").glob("test_*.c")}


def tool(name: str) -> str:
    path = shutil.which(name, path=BESIDE)
    assert path, f"{name} is needed (pip install -e .[dev]; a C and C++ compiler)"
    return path


def call(*words: object, **environment: str) -> str:
    """Run a program; its output, which must not hold a warning."""
    done = subprocess.run(
        [str(word) for word in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert "warning:" not in done.stdout, done.stdout[-5000:]
    return done.stdout


def build(folder: Path, *options: str, target: str = "all") -> None:
    ninja = f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"
    call(tool("cmake"), "-S", ROOT, "-B", folder, "-G", "Ninja", ninja, "-DPGIO_WERROR=ON", *options)
    call(tool("cmake"), "--build", folder, "--target", target)


@pytest.mark.slow
def test_the_c_tests_pass_under_the_address_and_undefined_behaviour_sanitizers(tmp_path: Path) -> None:
    assert len(TESTS) >= 12
    # Little optimisation: it builds in half the time. The library below is tested as it ships.
    build(tmp_path, "-DPGIO_TESTS=ON", "-DPGIO_SANITIZE=address,undefined", "-DCMAKE_C_FLAGS_RELEASE=-O1")
    output = call(tool("ctest"), "--test-dir", tmp_path, "--output-on-failure", "--no-tests=error", "--parallel", "2")
    assert set(re.findall(r"(test_\w+) \.+ +Passed", output)) == TESTS


@pytest.mark.slow
def test_threads_share_a_table_under_the_thread_sanitizer(tmp_path: Path) -> None:
    options = ["-DPGIO_TESTS=ON", "-DPGIO_SANITIZE=thread", "-DCMAKE_C_FLAGS_RELEASE=-O1"]
    for name in ("test_table", "test_table_refusals"):
        build(tmp_path, *options, target=name)
        call(tmp_path / name, TSAN_OPTIONS="halt_on_error=1")


# One program for both languages: the whole way from tokens to misses.
PROGRAM = r"""
#include <pgio.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    static const uint16_t ids[] = {TOKENS};
    static const uint64_t starts[] = {0, 20};
    static const pgio_hash hashes[] = {HASHES};
    static const pgio_column columns[] = {COLUMNS};
    static const pgio_group groups[] = {GROUPS};
    static const pgio_region regions[] = {REGIONS};
    const uint32_t hash_count = sizeof hashes / sizeof hashes[0];
    const uint32_t column_count = sizeof columns / sizeof columns[0], group_count = sizeof groups / sizeof groups[0];
    pgio_tokens tokens;
    pgio_error error;
    pgio_source *source = NULL;
    pgio_place *place = NULL;
    pgio_lru *lru = NULL;
    uint64_t accesses, compulsory, misses, full;
    const uint64_t capacity = 3;
    const uint32_t classes[] = {0, 0};
    uint32_t pages[1000];
    memset(&tokens, 0, sizeof tokens);
    tokens.ids = ids;
    tokens.count = sizeof ids / sizeof ids[0];
    tokens.document_starts = starts;
    tokens.document_count = 2;
    tokens.vocabulary = 65536;
    tokens.id_bytes = 2;
    if (pgio_place_new(&place, groups, group_count, regions, group_count, 512, PGIO_ISA_AUTO, &error) ||
        pgio_source_new(&source, hashes, hash_count, columns, column_count, groups, group_count, regions, group_count,
                        512, &tokens, PGIO_ISA_AUTO, &error) ||
        pgio_lru_new(&lru, pgio_place_page_count(place), &capacity, 1, classes, pgio_source_page_columns(source), 1,
                     &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    if (pgio_source_next(source, tokens.count, pages, &error) < 0 ||
        pgio_lru_access(lru, pages, tokens.count, NULL, &error) < 0)
        return 1;
    pgio_lru_counts(lru, &accesses, &compulsory, &misses, &full);
    printf("%s %d %d %d\n", pgio_version(), (int)accesses, (int)compulsory, (int)misses);
    pgio_lru_free(lru);
    pgio_source_free(source);
    pgio_place_free(place);
    return 0;
}
"""


def program_and_answer() -> tuple[str, str]:
    """The program with a layout and a stream filled in, and what it must print."""
    layout = pagegram(12_000, 4, Shape(heads=3, row_width=8, dim=16, page_bytes=512))
    ids = np.minimum(np.random.default_rng(1).geometric(0.1, 300), 40)
    stream = make_stream(ids, [0, 20])
    columns = ", ".join(
        f"{{{{0}}, {c.bucket_salt}u, {c.slot_salt}u, {c.modulus}, {c.row_base}, {c.row_stride}, {c.slot_count}, "
        f"{c.bucket_hash}, {c.slot_hash}, 0}}"
        for g in layout.groups
        for c in g.columns
    )
    groups = ", ".join(f"{{{g.row_base}, {g.unit_rows}, {len(g.columns)}, 1}}" for g in layout.groups)
    regions = ", ".join(
        f"{{{r.base_byte}, {r.unit_count}, {r.unit_bytes}, {r.row_bytes}, {r.units_per_page}, 0, NULL}}"
        for r in layout.regions
    )
    hashes = ", ".join(f"{{{{0}}, 0, 0, 0, 0, PGIO_SCHEME_PG1, {h.order}, 0, 0}}" for h in layout.hashes)
    text = (
        PROGRAM.replace("{HASHES}", f"{{{hashes}}}")
        .replace("{COLUMNS}", f"{{{columns}}}")
        .replace("{GROUPS}", f"{{{groups}}}")
    )
    text = text.replace("{REGIONS}", f"{{{regions}}}").replace("{TOKENS}", "{" + ", ".join(map(str, stream.ids)) + "}")
    with native_caches.Lru(layout.page_count, [3], np.zeros(2, np.uint32)) as lru:
        lru.access(layout.pages(layout.rows(stream)))
        accesses, compulsory, misses, _ = lru.counts()
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    return text, f"{version[1]} {accesses[0]} {compulsory[0]} {misses[0, 0]}\n"


def pkg_config(file: Path, name: str) -> list[str]:
    """Words of a field of a .pc file, with its variables put in: what pkg-config would print, where there is none."""
    text = file.read_text()
    variables = {"pcfiledir": str(file.parent), **dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))}
    found = re.search(rf"^{name}: (.*)$", text, re.MULTILINE)
    assert found
    value = found[1]
    while "${" in value:
        value = re.sub(r"\$\{(\w+)\}", lambda m: variables[m[1]], value)
    return value.split()


def exported(library: Path) -> set[str]:
    lines = call(tool("nm"), "-D", "--defined-only", library).splitlines()
    return {line.split()[2].split("@")[0] for line in lines} - {"_init", "_fini"}


def declared() -> set[str]:
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "csrc" / "pgio.h").read_text(), flags=re.DOTALL)
    return set(re.findall(r"\b(pgio_\w+)\(", header))


@pytest.mark.slow
def test_the_library_serves_c_and_cpp_programs_static_and_shared(tmp_path: Path) -> None:
    build(tmp_path / "build", "-DPGIO_LIBRARY=ON", "-DPGIO_TESTS=ON", f"-DCMAKE_INSTALL_PREFIX={tmp_path / 'to'}")
    call(tool("ctest"), "--test-dir", tmp_path / "build", "--output-on-failure", "--no-tests=error", "--parallel", "2")
    call(tool("cmake"), "--install", tmp_path / "build")
    [pc] = (tmp_path / "to").rglob("pgio.pc")
    library = pc.resolve().parent.parent
    compile_flags, link_flags = pkg_config(pc, "Cflags"), pkg_config(pc, "Libs")
    assert link_flags[0].startswith("-L") and Path(link_flags[0][2:]).resolve() == library
    assert link_flags[1:] == ["-lpgio"]
    text, answer = program_and_answer()
    for compiler, suffix, standard in (("cc", "c", "c99"), ("c++", "cpp", "c++11")):
        source = tmp_path / f"program.{suffix}"
        source.write_text(text)
        strict = [f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        for kind, flags in (("shared", link_flags), ("static", [str(library / "libpgio.a")])):
            program = tmp_path / f"{kind}-{suffix}"
            call(tool(compiler), *strict, *compile_flags, source, "-o", program, *flags)
            assert call(program, LD_LIBRARY_PATH=str(library)) == answer
    assert exported(library / "libpgio.so") == declared()  # and nothing else
    assert len(declared()) > 30


@pytest.mark.parametrize("libdir", ["lib", "lib64", "lib/x86_64-linux-gnu"])
def test_the_pkg_config_file_finds_its_folders_wherever_libraries_go(libdir: str, tmp_path: Path) -> None:
    """Debian's libraries lie a folder deeper (CMAKE_INSTALL_PREFIX=/usr), and the file must not count on two levels."""
    options = [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", "-DPGIO_LIBRARY=ON", f"-DCMAKE_INSTALL_LIBDIR={libdir}"]
    prefix = tmp_path / "to"
    call(
        tool("cmake"), "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_INSTALL_PREFIX={prefix}", *options
    )
    installed = prefix / libdir / "pkgconfig" / "pgio.pc"
    installed.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "build" / "pgio.pc", installed)
    (prefix / "include").mkdir()
    assert [Path(flag[2:]).resolve() for flag in pkg_config(installed, "Cflags")] == [prefix / "include"]
    assert Path(pkg_config(installed, "Libs")[0][2:]).resolve() == prefix / libdir


def test_the_python_module_exports_its_init_symbol_alone() -> None:
    import pagegram_io._pgio

    symbols = exported(Path(pagegram_io._pgio.__file__))
    assert "PyInit__pgio" in symbols
    assert not {name for name in symbols if name.startswith("pgio_")}
    assert symbols <= {"PyInit__pgio", "_cffi_pypyinit__pgio"}


def test_every_declared_function_is_in_the_python_module() -> None:
    assert {name for name in dir(native.lib) if name.startswith("pgio_")} == declared()
