"""The table file: written whole, opened by others, and every damage named."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from pagegram_io import doctor, native_reader, table_file
from pagegram_io.errors import FormatError
from pagegram_io.layout import Layout, Shape, build, engram, flat, pagegram
from pagegram_io.native_reader import Reader, aligned_bytes, verify_pages
from pagegram_io.placed_model import PlacedModel, placed_model_from_json

SMALL = pagegram(300_000, 4)
LAYOUTS = [
    flat(1_000_000),
    engram(1_000_000, Shape(seed=2**64 - 1)),
    SMALL,
    pagegram(1_000_000, 15, Shape(row_format="fp16")),
    pagegram(1_000_000, 15, Shape(packed=True, base_byte=12345)),
    engram(1_000_000, Shape(orders=(1, 3, 5), heads=3, row_width=32, row_format="int8", page_bytes=16384)),
    flat(1_000_000, Shape(dim=100, page_bytes=512)),
]


def raw(header: dict[str, Any] | bytes, data: bytes, *, block: int = 4096) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % block)
    return len(text).to_bytes(8, "little") + text + data


def fields_of(path: Path) -> tuple[dict[str, Any], bytes]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "whole.safetensors"
    table_file.write_pattern_file(path, SMALL, seed=5)
    return path


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.label} {layout.row_format}")
def test_layouts_come_back_from_their_json(layout: Layout) -> None:
    assert table_file.layout_from_json(table_file.layout_to_json(layout)) == layout


def test_a_layout_of_ones_own_is_refused() -> None:
    import dataclasses

    with pytest.raises(ValueError, match="of your own"):
        table_file.layout_to_json(dataclasses.replace(SMALL, name="mine"))
    with pytest.raises(ValueError, match="of your own"):
        table_file.layout_to_json(dataclasses.replace(SMALL, row_bytes=99))
    with pytest.raises(ValueError, match="heads is 300"):
        table_file.layout_to_json(engram(10**9, Shape(heads=300)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.label} {layout.row_format}")
def test_the_header_says_what_was_written(layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "a"
    written = table_file.write_pattern_file(path, layout, seed=7)
    assert table_file.read_header(path) == written
    assert (written.layout, written.page_count, written.page_bytes) == (layout, layout.page_count, layout.page_bytes)
    assert (written.content, written.seed, written.sealed, written.checks_byte) == ("pattern", 7, True, None)
    assert written.data_byte % max(4096, layout.page_bytes) == 0
    assert written.file_bytes == path.stat().st_size


def test_the_official_reader_opens_it(whole: Path) -> None:
    with safe_open(whole, "numpy") as file:
        assert file.metadata()["format_version"] == "1"
        assert list(file.keys()) == ["pages"]
        pages = file.get_tensor("pages")
    assert pages.dtype == np.uint8 and pages.shape == (SMALL.page_count, 4096)
    assert verify_pages(pages.reshape(-1), 0, 4096).all()
    assert len({page.tobytes() for page in pages}) == len(pages)


def test_the_reader_verifies_it_and_names_a_misplaced_page(whole: Path, tmp_path: Path) -> None:
    header = table_file.read_header(whole)
    count = header.page_count
    content = bytearray(whole.read_bytes())
    third = header.data_byte + 3 * 4096
    content[third : third + 4096] = content[third - 4096 : third]
    swapped = tmp_path / "swapped"
    swapped.write_bytes(content)
    for path, bad in ((whole, []), (swapped, [3])):
        with Reader(path, base_byte=header.data_byte, flags=("buffered", "verify")) as reader:
            assert reader.info().page_count == count
            status = reader.read(np.arange(count), aligned_bytes(count * 4096))
        assert np.flatnonzero(status != 4096).tolist() == bad
        assert (status[bad] == native_reader.STATUS_CORRUPT).all()


def test_equal_arguments_make_equal_bytes_and_seeds_change_them(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        table_file.write_pattern_file(tmp_path / name, 5000, seed=seed)  # more than two batches
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() != (tmp_path / "c").read_bytes()
    header = table_file.read_header(tmp_path / "a")
    assert header.layout is None and header.page_count == 5000
    pages = np.frombuffer((tmp_path / "a").read_bytes(), np.uint8)[header.data_byte :]
    assert verify_pages(np.ascontiguousarray(pages), 0, 4096).all()


def test_it_is_dense_and_incompressible(tmp_path: Path) -> None:
    import zlib

    path = tmp_path / "a"
    header = table_file.write_pattern_file(path, 1000)
    assert doctor.holes_in(path, 0, header.file_bytes) is None
    assert path.stat().st_blocks * 512 >= header.file_bytes
    data = path.read_bytes()[header.data_byte :]
    assert len(zlib.compress(data)) > 0.999 * len(data)


def test_progress_counts_the_bytes_of_the_pages(tmp_path: Path) -> None:
    told: list[int] = []
    table_file.write_pattern_file(tmp_path / "a", 5000, progress=told.append)
    assert sum(told) == 5000 * 4096 and len(told) == 3


def test_the_umask_decides_the_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        table_file.write_pattern_file(tmp_path / "a", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("fault", [KeyboardInterrupt, OSError(28, "No space left on device"), RuntimeError])
def test_whatever_stops_it_nothing_is_left(fault: Any, tmp_path: Path) -> None:
    def stop(count: int) -> None:
        raise fault

    with pytest.raises(fault if isinstance(fault, type) else OSError):
        table_file.write_pattern_file(tmp_path / "a", 5000, progress=stop)
    assert os.listdir(tmp_path) == []


def test_a_file_that_comes_into_being_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(FileExistsError, match="nothing is ever replaced"):
        table_file.write_pattern_file(path, 10, progress=lambda count: path.write_text("mine") and None)
    assert path.read_text() == "mine" and os.listdir(tmp_path) == ["a"]


def test_a_disk_too_small_is_noticed_before_writing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="needs 1024 TiB and the disk has .* free") as caught:
        table_file.write_pattern_file(tmp_path / "a", 2**38)
    assert caught.value.errno == 28 and os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"table": 0}, "at least 1"),
        ({"table": 2**60}, r"2\^62"),
        ({"table": 1, "page_bytes": 1000}, "power of two"),
        ({"table": 1, "page_bytes": 2**21}, "power of two"),
        ({"table": 1, "seed": 2**64}, "seed"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=words):
        table_file.write_pattern_file(tmp_path / "a", **arguments)
    assert os.listdir(tmp_path) == []


def test_room_for_seals() -> None:
    assert table_file.has_room_for_seals(pagegram(10**6, 4)) and table_file.has_room_for_seals(pagegram(10**6, 15))
    assert table_file.has_room_for_seals(engram(10**6)) and table_file.has_room_for_seals(flat(10**6))
    assert not table_file.has_room_for_seals(pagegram(10**6, 60))  # longer than a page
    assert not table_file.has_room_for_seals(engram(10**6, Shape(packed=True)))
    assert not table_file.has_room_for_seals(engram(10**6, Shape(row_format="fp16")))  # 32 x 128 fill a page


def test_pages_in() -> None:
    assert table_file.pages_in(2**30, 4096) == 2**18 - 1
    assert table_file.pages_in(8192, 4096) == table_file.pages_in(12287, 4096) == 1
    assert table_file.pages_in(4096 + 512, 512) == 1
    with pytest.raises(ValueError, match="too small"):
        table_file.pages_in(8191, 4096)


def test_trained_tables_with_checks_beside_the_pages(tmp_path: Path) -> None:
    layout = engram(200_000, Shape(packed=True))
    header = table_file.TableHeader(layout, 4096, layout.page_count, 4096, "trained", None, sealed=False)
    path = tmp_path / "a"
    path.write_bytes(table_file.encode_header(header) + bytes(layout.page_count * 4100))
    assert table_file.read_header(path) == header
    assert header.checks_byte == 4096 + layout.page_count * 4096
    with safe_open(path, "numpy") as file:
        assert file.get_tensor("page_checks").dtype == np.uint32


def _set(*keys: str, to: Any) -> Any:
    """Changes a field of a header; to None removes it."""

    def change(fields: dict[str, Any]) -> None:
        for key in keys[:-1]:
            fields = fields[key]
        if to is None:
            del fields[keys[-1]]
        else:
            fields[keys[-1]] = to

    return change


def _layout(**changes: Any) -> Any:
    """Changes fields of the layout in a header."""

    def change(fields: dict[str, Any]) -> None:
        layout = json.loads(fields["__metadata__"]["layout"]) | changes
        fields["__metadata__"]["layout"] = json.dumps(layout)

    return change


COUNT = SMALL.page_count
DAMAGES = [
    (_set("__metadata__", to=None), "no pages or no format_version"),
    (_set("__metadata__", to=[]), "not a safetensors file"),
    (_set("__metadata__", "seed", to=5), "not a safetensors file"),
    (_set("pages", to=None), "no pages"),
    (_set("__metadata__", "format_version", to="2"), "version '2'"),
    (_set("__metadata__", "format_version", to="x" * 5000), "version 'xxx"),
    (_set("__metadata__", "content", to="rows"), "content is 'rows'"),
    (_set("__metadata__", "content", to=None), "content is None"),
    (_set("rows", to={}), "no tensor 'rows'"),
    (_set("__metadata__", "seed", to="-1"), "seed is '-1'"),
    (_set("__metadata__", "seed", to=str(2**64)), "seed is"),
    (_set("__metadata__", "seed", to="١"), "seed is"),
    (_set("__metadata__", "seed", to=None), "a pattern has a seed"),
    (_set("pages", "dtype", to="I8"), "not U8"),
    (_set("pages", "shape", to=[COUNT * 4096]), "not U8 of 2"),
    (_set("pages", "shape", to=[COUNT, 4096.0]), "not U8 of 2"),
    (_set("pages", "shape", to=[True, 4096]), "not U8 of 2"),
    (_set("pages", "shape", to=[0, 4096]), "not U8 of 2"),
    (_set("pages", "shape", to=[COUNT * 4096, 1]), "power of two"),
    (_set("pages", "shape", to=[COUNT * 4, 1024]), "its layout takes"),
    (_set("pages", "shape", to="x" * 99999), "not U8"),
    (_set("pages", "data_offsets", to=[1, COUNT * 4096 + 1]), "lies at"),
    (_set("pages", "data_offsets", to=[False, COUNT * 4096]), "lies at"),
    (_set("pages", "data_offsets", to=[0, COUNT * 4096 - 1]), "lies at"),
    (_set("pages", "extra", to=1), "not described"),
    (_set("pages", to=3), "not described"),
    (_set("page_checks", to={"dtype": "U32", "shape": [COUNT], "data_offsets": [0, 4 * COUNT]}), "page_checks lies"),
    (_set("page_checks", to={"dtype": "U32", "shape": [1], "data_offsets": [0, 4]}), "not one for each"),
    (_set("__metadata__", "layout", to="[]"), "the layout is not an object"),
    (_set("__metadata__", "layout", to="{"), "the layout is not JSON"),
    (_set("__metadata__", "layout", to="[" * 200_000), "nested too deeply"),
    (_layout(table_params=400_000), "its layout takes"),
    (_layout(page_bytes=8192), "its layout takes"),
    (_layout(table_params=2**62), "table_params is"),
    (_layout(table_params=1), "too small"),
    (_layout(heads=0), "heads 0"),
    (_layout(heads=10**9), "heads is"),
    (_layout(name="mine"), "not known"),
    (_layout(name=None), "not known"),
    (_layout(name="engram"), "pagegram alone has slots"),
    (_layout(slots=None), "pagegram alone has slots"),
    (_layout(slots=0), "0 slots"),
    (_layout(orders=[]), "orders"),
    (_layout(orders=[3, 2]), "orders 3,2"),
    (_layout(orders=["2"]), "orders are"),
    (_layout(row_format="nf3"), "row format 'nf3'"),
    (_layout(row_format=[]), "not known"),
    (_layout(row_width=63), "NF4"),
    (_layout(packed=1), "not known"),
    (_layout(base_byte=2**61, packed=True), "."),
    (_layout(more=1), "not an object of"),
    (_layout(seed=2**64), "seed is"),
]


@pytest.mark.parametrize(("change", "words"), DAMAGES, ids=lambda value: value if isinstance(value, str) else "")
def test_damaged_headers(change: Any, words: str, whole: Path, tmp_path: Path) -> None:
    fields, data = fields_of(whole)
    change(fields)
    refuse(tmp_path / "damaged", raw(fields, data), words)


def refuse(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(FormatError, match=words) as caught:
        table_file.read_header(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < len(str(path)) + 300


def test_damaged_files(whole: Path, tmp_path: Path) -> None:
    path, content = tmp_path / "damaged", whole.read_bytes()
    fields, data = fields_of(whole)
    text = json.dumps(fields)
    for cut, words in ((0, "not a safetensors"), (7, "not a safetensors"), (100, "not a safetensors"), (9000, "cut")):
        refuse(path, content[:cut], words)
    refuse(path, content + b"x", "cut or grew")
    refuse(path, raw(fields, data, block=1), "not a page boundary")
    refuse(path, raw(fields, data, block=512), "not a page boundary")
    refuse(path, raw(fields, data, block=2**21), "longer than")
    refuse(path, raw(text.replace('"pages"', '"pages": 1, "pages"', 1).encode(), data), "twice")
    refuse(path, raw(text.encode("utf-16"), data), "not JSON")
    refuse(path, raw(b" " + text.encode(), data), "not a JSON object")
    refuse(path, raw(b"[1]", data), "not a JSON object")
    refuse(path, raw(text.replace("4096", "NaN", 1).encode(), data), "NaN")
    refuse(path, raw(text.replace("4096", "9" * 5000, 1).encode(), data), "the layout is not JSON")
    refuse(path, raw(text.replace('"shape": [', '"shape": [' + "9" * 5000, 1).encode(), data), "its header is not JSON")
    refuse(path, raw(b"[" * 100_000, data), "not JSON")
    refuse(path, b"\xff" * 5000, "not a safetensors")


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(FormatError, match="not a regular file"):
            table_file.read_header(path)
    with pytest.raises(FileNotFoundError):
        table_file.read_header(tmp_path / "none")


fuzzing = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADER = table_file.encode_header(table_file.pattern_header(SMALL, seed=5))


def read_or_refuse(path: Path, content: bytes) -> table_file.TableHeader | None:
    path.write_bytes(content)
    try:
        return table_file.read_header(path)
    except FormatError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
        return None


@fuzzing
@given(at=st.integers(0, len(HEADER.rstrip()) - 1), new=st.binary(min_size=1, max_size=4))
def test_fuzz_bytes_of_the_header(at: int, new: bytes, tmp_path: Path) -> None:
    content = HEADER[:at] + new + HEADER[at + len(new) :] + bytes(SMALL.page_count * 4096)
    header = read_or_refuse(tmp_path / "fuzz", content)
    if header is not None:
        assert header.file_bytes == len(content)
        assert header.layout is None or header.layout.page_count == header.page_count


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
LAYOUT_FIELDS = list(json.loads(table_file.layout_to_json(SMALL)))


@fuzzing
@given(
    places=st.lists(
        st.sampled_from(
            [("pages", key) for key in ("dtype", "shape", "data_offsets")]
            + [("__metadata__", key) for key in ("format_version", "content", "seed", "layout", "other")]
            + [("pages",), ("__metadata__",), ("page_checks",), ("other",)]
            + [("layout", key) for key in LAYOUT_FIELDS]
        ),
        min_size=1,
        max_size=2,
    ),
    values=st.lists(VALUES, min_size=2, max_size=2),
)
def test_fuzz_values_of_the_header(places: list[tuple[str, ...]], values: list[Any], tmp_path: Path) -> None:
    fields = json.loads(HEADER[8:])
    for place, value in zip(places, values, strict=False):
        if place[0] == "layout":
            inner = json.loads(table_file.layout_to_json(SMALL)) | {place[1]: value}
            fields["__metadata__"] = json.loads(HEADER[8:])["__metadata__"] | {"layout": json.dumps(inner)}
        elif len(place) == 1:
            fields[place[0]] = value
        elif isinstance(fields.get(place[0]), dict):
            fields[place[0]][place[1]] = value
    header = read_or_refuse(tmp_path / "fuzz", raw(fields, bytes(SMALL.page_count * 4096)))
    if header is not None and header.layout is not None:
        assert header.layout.page_count == SMALL.page_count


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["flat", "engram", "pagegram"]),
    slots=st.integers(1, 20),
    params=st.integers(200_000, 30_000_000_000),
    row_format=st.sampled_from(["nf4", "fp8", "fp16", "fp32"]),
    packed=st.booleans(),
    page_bytes=st.sampled_from([512, 4096, 65536]),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_layout_comes_back(name: str, slots: int, params: int, **shape: Any) -> None:
    layout = build([name], params, slots=[slots], shape=Shape(**shape))[0]
    assert table_file.layout_from_json(table_file.layout_to_json(layout)) == layout


def mix(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


@pytest.mark.parametrize("page_bytes", [512, 4096, 16384])
def test_the_pattern_is_the_one_of_formats_md(page_bytes: int, tmp_path: Path) -> None:
    seed, gamma = 2**64 - 3, 0x9E3779B97F4A7C15
    header = table_file.write_pattern_file(tmp_path / "a", 9, page_bytes=page_bytes, seed=seed)
    data = (tmp_path / "a").read_bytes()[header.data_byte :]
    for i in (0, 8):
        page = data[i * page_bytes : (i + 1) * page_bytes]
        start = mix((seed * gamma + i + 1) % 2**64)
        words = [mix((start + (w + 1) * gamma) % 2**64) for w in range(page_bytes // 8 - 1)]
        assert page[:-8] == np.array(words, "<u8").tobytes()
        assert page[-8:-4] == i.to_bytes(4, "little")
        assert int.from_bytes(page[-4:], "little") == native_reader.crc32c(page[:-4])


# ---- as large as a deployed table ------------------------------------------------------------------

PLACED = PlacedModel("modded-nanogpt", "bf16", "resident")


@pytest.mark.parametrize(
    "placed",
    [
        PLACED,
        PlacedModel("modded-nanogpt", "bf16", "read", repack=True),
        PlacedModel("modded-nanogpt", "bf16", "resident", repack=True, aligned=True),
    ],
)
def test_a_model_comes_back_from_its_json(placed: PlacedModel) -> None:
    layout = placed.layout(4096)
    assert layout is not None
    assert placed_model_from_json(placed.to_json(), 4096, layout.page_count) == placed
    header = table_file.pattern_header(layout.page_count, seed=3, model=placed)
    assert (header.model, header.layout, header.page_count) == (placed, None, layout.page_count)
    with pytest.raises(ValueError, match=f"takes {layout.page_count} pages of 4096 bytes, and it holds 9"):
        placed_model_from_json(placed.to_json(), 4096, 9)


def test_a_model_placed_by_a_checkpoint_has_as_many_pages_as_the_file_says(tmp_path: Path) -> None:
    placed = PlacedModel("modded-nanogpt", "whatever the files say", "read", files=True)
    written = table_file.write_pattern_file(tmp_path / "a", 3, seed=1, model=placed)
    assert table_file.read_header(tmp_path / "a") == written
    with safe_open(tmp_path / "a", "numpy") as file:
        assert json.loads(file.metadata()["model"])["files"] is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "a-later-one"}, "not known"),
        ({"model": ""}, "not a short text"),
        ({"model": 7}, "its model's model is 7"),
        ({"row_format": "x" * 101}, "not a short text"),
        ({"row_format": "nf4"}, "no row format 'nf4'"),
        ({"scales": "gone"}, "scales are resident or read"),
        ({"scales": "gone", "files": True}, "scales are resident or read"),
        ({"repack": 1}, "neither true nor false"),
        ({"aligned": True}, "aligned and not repacked"),
        ({"page_bytes": 4096}, "not an object of aligned, files, model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_damaged_model_is_named(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Of a pattern of one page, so that nothing else is wrong with it."""
    placed = PlacedModel("modded-nanogpt", "bf16", "resident", files=True)
    table_file.write_pattern_file(tmp_path / "a", 1, seed=1, model=placed)
    fields, data = fields_of(tmp_path / "a")
    told = json.loads(fields["__metadata__"]["model"]) | {"files": "files" in change} | change
    fields["__metadata__"]["model"] = json.dumps(told)
    (tmp_path / "b").write_bytes(raw(fields, data))
    with pytest.raises(FormatError, match=words):
        table_file.read_header(tmp_path / "b")


def test_a_model_stands_in_a_pattern_without_a_layout_alone(whole: Path, tmp_path: Path) -> None:
    fields, data = fields_of(whole)
    fields["__metadata__"]["model"] = PLACED.to_json()
    (tmp_path / "a").write_bytes(raw(fields, data))
    with pytest.raises(FormatError, match="no layout of ours"):
        table_file.read_header(tmp_path / "a")
    del fields["__metadata__"]["layout"]
    for text, words in (("{", "not JSON"), ("[]", "not an object"), ('{"model": 1, "model": 1}', "model")):
        fields["__metadata__"]["model"] = text
        (tmp_path / "a").write_bytes(raw(fields, data))
        with pytest.raises(FormatError, match=words):
            table_file.read_header(tmp_path / "a")
