"""Arrays in files: a part equals the slice of the whole, costs only itself, and what cannot be read says why."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardwise.errors import FileError, MissingExtraError
from shardwise.runtime import archives, files, formats
from shardwise.runtime.files import open_source, save

DTYPES = ["float32", "float64", "float16", "int8", "int32", "complex64", "bool"]
LITTLE = ["BF16", "F8_E4M3", "F8_E5M2"]
ROW = np.arange(3, dtype=np.float32)


@st.composite
def arrays(draw, dtypes=DTYPES) -> np.ndarray:
    """Small arrays of rank 0 to 4, in C or Fortran order, with either byte order."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    raw = np.random.default_rng(draw(st.integers(0, 99))).integers(-100, 100, shape)
    array = raw.astype(draw(st.sampled_from(dtypes)), order=draw(st.sampled_from("CF")))
    return array.astype(array.dtype.newbyteorder(draw(st.sampled_from("<>"))), order="K")


@st.composite
def parts(draw, shape) -> tuple[slice, ...]:
    """One part: bounds given or left open, within the array or beyond its end."""
    index = []
    for size in shape:
        start = draw(st.none() | st.integers(0, size))
        stop = draw(st.none() | st.integers(start or 0, size + 1))
        index.append(slice(start, stop))
    return tuple(index)


def assert_reads(data, source, array: np.ndarray) -> None:
    native = array.dtype.newbyteorder("=")
    assert (source.shape, source.dtype) == (array.shape, native)
    for index in [(slice(None),) * array.ndim, *data.draw(st.lists(parts(array.shape), max_size=3))]:
        part = source.read(index)
        assert type(part) is np.ndarray
        assert (part.dtype, part.dtype.isnative, part.flags.c_contiguous, part.flags.writeable) == (native, *[True] * 3)
        np.testing.assert_array_equal(part, array[*index, ...].astype(native), strict=True)


# Values.


@given(st.data(), arrays())
def test_parts_of_an_npy_are_the_slices_of_the_whole(data, array):
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/a.npy", array)
        assert_reads(data, open_source(f"{folder}/a.npy"), array)


@given(st.data(), arrays(), st.sampled_from([np.savez, np.savez_compressed]))
def test_parts_of_an_npz_are_the_slices_of_the_whole(data, array, write):
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/a.npz", before=ROW, W=array, after=ROW)
        assert_reads(data, open_source(f"{folder}/a.npz:W"), array)


@given(st.data(), arrays([*DTYPES, *(files.CODES[code] for code in LITTLE)]))
def test_parts_of_a_safetensors_are_the_slices_of_the_whole(data, array):
    array = array.astype(array.dtype.newbyteorder("<"), order="C")  # what the format holds
    with tempfile.TemporaryDirectory() as folder:
        safetensors.numpy.save_file({"before": ROW, "W": array, "after": ROW}, f"{folder}/a.safetensors")
        assert_reads(data, open_source(f"{folder}/a.safetensors:W"), array)


def cover(draw, shape) -> list[tuple[slice, ...]]:
    """Cuts every dimension into up to three pieces: parts without gap or overlap, in any order."""
    cuts = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))}) for size in shape]
    pieces = [[slice(*ends) for ends in itertools.pairwise(along)] for along in cuts]
    return draw(st.permutations(list(itertools.product(*pieces))))


@given(st.data(), st.sampled_from([".npy", ".safetensors"]))
def test_what_is_saved_in_parts_is_read_as_the_whole(data, suffix):
    more = [files.CODES[code] for code in LITTLE] if suffix == ".safetensors" else []
    array = data.draw(arrays([*DTYPES, *more]))
    array = array.astype(array.dtype.newbyteorder("="))
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/c{suffix}"
        save(path, array.shape, array.dtype, [(i, array[*i, ...]) for i in cover(data.draw, array.shape)])
        assert os.listdir(folder) == [f"c{suffix}"]
        assert_reads(data, open_source(path), array)
        if suffix == ".npy":
            np.testing.assert_array_equal(np.load(path, allow_pickle=False), array, strict=True)


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_devices_read_and_write_their_shards(tmp_path, suffix):
    import jax  # here alone, since all else about files can do without

    devices = jax.devices()
    array = np.arange(len(devices) * 6, dtype=np.float32).reshape(len(devices), 6)
    save(tmp_path / f"a{suffix}", array.shape, array.dtype, [((slice(None), slice(None)), array)])
    source = open_source(tmp_path / f"a{suffix}")
    sharding = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "x"), jax.sharding.PartitionSpec("x"))
    sharded = jax.make_array_from_callback(source.shape, sharding, source.read)
    shards = ((shard.index, shard.data) for shard in sharded.addressable_shards)
    save(tmp_path / f"b{suffix}", sharded.shape, sharded.dtype, shards)
    np.testing.assert_array_equal(open_source(tmp_path / f"b{suffix}").read((slice(None), slice(None))), array)


def test_a_part_is_a_copy_that_can_be_written_to_without_touching_the_file(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", ROW)
    source = open_source(tmp_path / "a.npz")
    source.read((slice(None),))[:] = 9
    np.testing.assert_array_equal(source.read((slice(None),)), ROW)


def test_a_safetensors_gets_the_name_of_its_file_or_the_one_given(tmp_path):
    save(tmp_path / "c.safetensors", (3,), np.float32, [((slice(0, 3),), ROW)])
    save(f"{tmp_path}/d.safetensors:W", (3,), np.float32, [((slice(0, 3),), ROW)])
    assert [*safetensors.numpy.load_file(tmp_path / "c.safetensors")] == ["c"]
    assert [*safetensors.numpy.load_file(tmp_path / "d.safetensors")] == ["W"]


def test_headers_of_later_versions_are_read(tmp_path):
    for version in [(1, 0), (2, 0), (3, 0)]:
        with (tmp_path / "a.npy").open("wb") as file:
            np.lib.format.write_array(file, ROW, version)
        np.testing.assert_array_equal(open_source(tmp_path / "a.npy").read((slice(1, 3),)), ROW[1:])


# Names.


def test_the_name_may_be_left_off_where_there_is_one_array(tmp_path):
    np.savez(tmp_path / "one.npz", W=ROW)
    assert open_source(tmp_path / "one.npz").shape == (3,)
    assert open_source(tmp_path / "one.npz").name == str(tmp_path / "one.npz")


def test_colons_belong_to_the_path_unless_a_file_stands_before_them(tmp_path):
    (tmp_path / "run:1").mkdir()
    np.save(tmp_path / "run:1" / "a.npy", ROW)
    np.savez(tmp_path / "run:1" / "b.npz", **{"layer:0": ROW, "x": ROW[:2]})
    np.save(tmp_path / "run:1" / "b.npz:x.npy", ROW[:1])
    assert open_source(f"{tmp_path}/run:1/a.npy").shape == (3,)
    assert open_source(f"{tmp_path}/run:1/b.npz:x").shape == (2,)
    assert open_source(f"{tmp_path}/run:1/b.npz:layer:0").shape == (3,)
    assert open_source(f"{tmp_path}/run:1/b.npz:x.npy").shape == (1,)


# Cost.


def sparse_npy(path: Path, rows: int) -> None:
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, 1024))


def sparse_safetensors(path: Path, rows: int) -> None:
    end = rows * 1024 * 4
    header = json.dumps({"W": {"dtype": "F32", "shape": [rows, 1024], "data_offsets": [0, end]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + end)


READ_ONE_PART = """
import re, sys
from pathlib import Path
from shardwise.runtime.files import open_source

def peak_bytes():  # of this process alone, where getrusage would count that of its parent
    return 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])

source = open_source(sys.argv[1])
source.read((slice(0, 1), slice(0, 1)))  # what is loaded once counts for no part
before = peak_bytes()
part = source.read((slice(1000, 1000 + 2**13), slice(0, 1024)))
print((peak_bytes() - before) / part.nbytes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's figure of peak memory")
@pytest.mark.parametrize("write", [sparse_npy, sparse_safetensors])
def test_a_part_of_a_gibibyte_brings_only_itself_into_memory(tmp_path, write):
    path = tmp_path / f"big{write.__name__.replace('sparse_', '.')}"
    write(path, 2**18)
    assert path.stat().st_size > 2**30
    run = subprocess.run([sys.executable, "-c", READ_ONE_PART, path], capture_output=True, text=True, check=True)
    # 1/32 of the file: once in the map, which the system can take back, and once or twice as a copy
    assert 0.5 < float(run.stdout) < 4


def test_a_part_of_an_uncompressed_npz_allocates_only_itself(tmp_path):
    np.savez(tmp_path / "a.npz", W=np.zeros((4096, 1024), np.float32))
    source = open_source(tmp_path / "a.npz")
    tracemalloc.start()
    part = source.read((slice(0, 64), slice(0, 1024)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1.1 * part.nbytes


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_part_of_a_compressed_member_allocates_only_itself_and_a_buffer(tmp_path, order):
    whole = np.zeros((4096, 1024), np.float32, order=order)
    whole[70, 5] = 7
    np.savez_compressed(tmp_path / "a.npz", W=whole)
    source = open_source(tmp_path / "a.npz")
    tracemalloc.start()
    part = source.read((slice(64, 128), slice(0, 1024)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < part.nbytes + 6 * archives.BUFFER_BYTES < whole.nbytes
    assert (part[6, 5], part.sum()) == (7, 7)


def test_parts_of_a_compressed_member_in_the_order_of_the_file_cost_one_pass_beyond_the_check(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "BUFFER_BYTES", 256)
    whole = np.arange(64 * 100.0).reshape(64, 100)
    np.savez_compressed(tmp_path / "a.npz", whole)
    source = open_source(tmp_path / "a.npz")
    read, passed = zipfile.ZipExtFile.read, []
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda self, n=-1: passed.append(n) or read(self, n))
    for start in range(0, 64, 8):
        np.testing.assert_array_equal(source.read((slice(start, start + 8), slice(0, 100))), whole[start : start + 8])
    assert sum(passed) < 2.2 * whole.nbytes
    np.testing.assert_array_equal(source.read((slice(0, 64), slice(3, 5))), whole[:, 3:5])


@given(st.data(), arrays())
def test_streamed_parts_are_slices_whatever_the_buffer(data, array):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "BUFFER_BYTES", 16)
        np.savez_compressed(f"{folder}/a.npz", array)
        assert_reads(data, open_source(f"{folder}/a.npz"), array)


def test_a_compressed_source_stays_what_it_was_when_its_file_is_replaced(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", ROW)
    source = open_source(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "b.npz", -ROW)
    os.replace(tmp_path / "b.npz", tmp_path / "a.npz")
    np.testing.assert_array_equal(source.read((slice(0, 3),)), ROW)


def test_a_source_stays_what_it_was_when_its_file_is_replaced(tmp_path):
    np.save(tmp_path / "a.npy", ROW)
    source = open_source(tmp_path / "a.npy")
    save(tmp_path / "a.npy", (3,), np.float32, [((slice(0, 3),), -source.read((slice(0, 3),)))])
    np.testing.assert_array_equal(source.read((slice(0, 3),)), ROW)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), -ROW)


# What cannot be read. Each file is made, and the message has the name as written, what is wrong, and the way out.


def header_of(dtype, shape=(3,), order=False) -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': {order}, 'shape': {shape!r}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def a_pickled(path):
    np.save(path, np.array([{"a": 1}, None], object), allow_pickle=True)


def a_zip_of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


def an_npz_with_objects(path):
    np.savez_compressed(path, W=np.array([None]))


def an_npz_with_a_short_member(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("W.npy", header_of("<f4", (30,)) + b"\0" * 8)


def an_npz_with_twins(path):
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that the name is there already
        for _ in range(2):
            archive.writestr("W.npy", header_of("<f4") + b"\0" * 12)


def an_npz_that_says_more_than_deflate_can(path):
    np.savez_compressed(path, W=ROW)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")
    content[at + 24 : at + 28] = struct.pack("<I", 2**32 - 2)  # the uncompressed size
    path.write_bytes(content)


def an_npz_with_a_header_of_gigabytes(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("W.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 10**6)


def a_sparse_header(path):
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 3 * 2**30))
    os.truncate(path, 3 * 2**30 + 12)


def a_loop(path):
    path.symlink_to(path.name)


def an_npz_cut(path):
    np.savez(path, W=np.zeros(1000))
    path.write_bytes(path.read_bytes()[:600])


def two_arrays(path):
    with path.open("wb") as file:  # to a path, NumPy would add a suffix of its own
        np.savez(file, weight=ROW, bias=ROW)


def a_big_endian_npy(path):
    with path.open("wb") as file:
        np.save(file, ROW.astype(">f4"))


def of_bytes(content: bytes):
    def write(path):
        path.write_bytes(content)

    write.__name__ = content[:12].hex() or "nothing"
    return write


UNREADABLE = [
    ("a.npy", of_bytes(b""), "the file is empty (0 bytes), so nothing was ever written to it; copy it again"),
    ("a.npz", of_bytes(b""), "the file is empty (0 bytes)"),
    ("a.npy", Path.mkdir, "this is a folder, not a file; name a file in it: none is .npy, .npz or .safetensors"),
    ("a.txt", of_bytes(b"1 2"), "files that end in .txt are not read; .npy, .npz or .safetensors are"),
    ("a", of_bytes(b"1 2"), "files that end in nothing are not read"),
    ("a.npy", of_bytes(header_of("<f4", (4, 8)) + b"\0" * 8), "the file is truncated: with float32[4, 8] its header "
     "asks for 198 bytes, and there are 78; copy it again, or save it again"),
    ("a.npy", of_bytes(header_of("<f4")[:30]), "the file is truncated: it ends within its header; copy it again"),
    ("a.npy", of_bytes(b"\x93NU"), "the file is truncated: it ends within its header"),
    ("a.npy", of_bytes(header_of("<f4").replace(b"descr", b"dexcr")), "the header is corrupt ("),
    ("a.npy", of_bytes(header_of("<f4").replace(b"{", b"(")), "the header is corrupt ("),
    ("a.npy", of_bytes(header_of("<f4", (-3,))), "the header is corrupt: it gives the shape (-3,); copy it again"),
    ("a.npy", of_bytes(header_of("<f4", (True, 16)) + b"\0" * 64), "the header is corrupt: it gives the shape (True, 16)"),
    ("a.npy", of_bytes(header_of("<f4", (10**4000, 10**4000))), "the header is corrupt: it gives the shape ("),
    ("a.npy", of_bytes(header_of("<f4", (10**18,) * 300)), "the header is corrupt: it gives the shape ("),
    ("a.npy", of_bytes(header_of("<f4") + b"\0" * 20), "the file is longer than its array: its header asks for 80 bytes, and "
     "there are 88; save each array to a file of its own"),
    ("a.npy", of_bytes(header_of(("<f4", (3,))) + b"\0" * 36), "makes an array of every value"),
    ("a.npy", a_sparse_header, "the header is corrupt (it gives its own length as 3,221,225,472 bytes, and up to 10,000 are"),
    ("a.npy", a_loop, "this is a link to nothing, or to itself; check where it points"),
    ("a.npz", a_loop, "this is a link to nothing, or to itself"),
    ("a.npz", an_npz_with_twins, "the file holds 2 arrays named 'W', and nothing says which is meant; copy it again"),
    ("a.npz", an_npz_that_says_more_than_deflate_can, "the archive is corrupt (it gives 4,294,967,294 bytes for "),
    ("a.npz", an_npz_with_a_header_of_gigabytes, "the header is corrupt (it gives its own length as 4,294,967,295 bytes"),
    ("a.npy", of_bytes(header_of("<q9")), "the header is corrupt (descr is not a valid dtype descriptor: '<q9')"),
    ("a.npy", of_bytes(b"\x93NUMPY\x07\x00" + b" " * 99), "the header is corrupt (version 7.0 of the format is not"),
    ("a.npy", of_bytes(header_of("<f4", (0,) + (1,) * 70)), "NumPy has no arrays of the shape (0, 1, "),
    ("a.npy", of_bytes(b"hello world"), "by its first bytes this is not an .npy file; give it the suffix of its"),
    ("a.npy", of_bytes(pickle.dumps([1.0])), "by its first bytes this is not an .npy file, but a pickle; give it the"),
    ("a.npy", two_arrays, "not an .npy file, but a zip archive, as .npz is; give it the suffix of its format"),
    ("a.npy", a_pickled, "it holds Python objects as a pickle, and unpickling can run code, so it is refused; save it "
     "again with a numeric dtype: np.save(path, array.astype(np.float32))"),
    ("a.npz", an_npz_with_objects, "unpickling can run code, so it is refused; save it again with a numeric dtype"),
    ("a.npy", of_bytes(header_of([("x", "<f4"), ("y", "<i4")]) + b"\0" * 99), "its dtype is structured, with the "
     "fields x, y, and an array here holds plain numbers; save each field as a file of its own"),
    ("a.npy", of_bytes(header_of("<V2") + b"\0" * 6), "its values are raw (|V2): .npy cannot name dtypes such as "
     "bfloat16, and keeps only their bytes; save it again as float32, or as .safetensors"),
    ("a.npy", of_bytes(header_of("<U2") + b"\0" * 24), "its dtype <U2 is not numeric; save it again as numbers"),
    ("a.npz", a_zip_of_text, "this zip is no .npz: none of its members is an .npy file (readme.txt); use np.savez"),
    ("a.npz", a_big_endian_npy, "this is no .npz, which is a zip archive; give it the suffix of its format"),
    ("a.npz", an_npz_cut, "the file is truncated: the directory at the end of an .npz is missing; copy it again"),
    ("a.npz", an_npz_with_a_short_member, "the file is truncated: with float32[30] its header asks for 189 bytes"),
    ("a.npz", np.savez, "the file holds no array; save one to it"),
    ("a.npz", two_arrays, "the file holds 2 arrays; add ':' and one of their names: weight, bias"),
    ("a.npz:wieght", two_arrays, "the file holds no array named 'wieght' (did you mean 'weight'?); it holds weight, "),
    ("a.npy:W", a_big_endian_npy, "an .npy file holds one array, which has no name; leave off ':W'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "write", "message"), UNREADABLE, ids=itertools.count())
def test_what_cannot_be_read_says_why_and_the_way_out(tmp_path, text, write, message):
    path = tmp_path / text.partition(":")[0]
    write(path)
    with pytest.raises(FileError) as caught:
        open_source(f"{tmp_path}/{text}")
    assert str(caught.value).startswith(f"{tmp_path}/{text}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("wieght.npy", "there is no file wieght.npy in {folder} (did you mean 'weight.npy'?); check the path"),
        ("wieght.npz:W", "there is no file wieght.npz in {folder} (did you mean 'weight.npy'?); check the path"),
        ("zzz.npy", "there is no file zzz.npy in {folder}; check the path"),
        ("dta/sub/W.npy", "there is no file or folder dta in {folder} (did you mean 'data'?); check the path"),
        ("", "this is a folder, not a file; name a file in it: weight.npy"),
    ],
)
def test_what_is_not_there_is_compared_with_what_is(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    np.save("weight.npy", ROW)
    Path("data").mkdir()
    with pytest.raises(FileError) as caught:
        open_source(text)
    assert str(caught.value) == f"{text}: {message.format(folder=tmp_path.resolve())}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_cannot_be_read_in_parts(tmp_path):
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(FileError, match=r"a\.npy: this is no regular file, and cannot be read in parts; copy it to"):
        open_source(tmp_path / "a.npy")


def test_what_the_system_refuses_is_a_file_error_too(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", ROW)
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(FileError, match=r"a\.npy: Permission denied; check the file's permissions and its disk"):
        open_source(tmp_path / "a.npy")


def test_damage_within_a_compressed_member_is_found_when_it_is_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", W=np.random.default_rng(0).normal(size=10_000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[40_000] ^= 255
    (tmp_path / "a.npz").write_bytes(content)
    source = open_source(tmp_path / "a.npz")
    with pytest.raises(FileError, match=r"a\.npz: the archive is corrupt, or uses what is not supported \(.+\); copy"):
        source.read((slice(0, 1),))


def test_without_the_library_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    (tmp_path / "b.safetensors").write_bytes(b"x")
    with pytest.raises(MissingExtraError) as caught:
        open_source(tmp_path / "b.safetensors")
    why = "reading .safetensors needs the extra 'files': pip install 'shardwise[files]'"
    assert str(caught.value) == f"{tmp_path}/b.safetensors: {why}"


def safetensors_bytes(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


TWELVE = {"W": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}
TWO = {**TWELVE, "bias": {"dtype": "F32", "shape": [1], "data_offsets": [12, 16]}}
RANK_65 = {"W": {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}}
HUGE_AND_EMPTY = {"W": {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]}}
OVERLAPPING = {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "VW"}
FP4 = {"W": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}


@pytest.mark.parametrize(
    ("text", "content", "message"),
    [
        ("b.safetensors", b"\x01", "the file is truncated: its header asks for 8 bytes, and there are 1; copy it"),
        ("b.safetensors", safetensors_bytes(TWELVE)[:20], "the file is truncated: its header asks for 70 bytes"),
        ("b.safetensors", safetensors_bytes(TWELVE, b"\0" * 8), "the file is truncated: with W its header asks for 82 "
         "bytes, and there are 78; copy it again, or save it again"),
        ("b.safetensors", safetensors_bytes(TWELVE, b"\0" * 16), "the header is corrupt ("),
        ("b.safetensors", safetensors_bytes([1, 2]), "the header is corrupt ("),
        ("b.safetensors", b"\xff" * 99, "the header is corrupt, or of too many arrays: it gives its own length as "
         "18,446,744,073,709,551,615 bytes"),
        ("b.safetensors", struct.pack("<Q", 9) + b"{'W': 12}", "the header is corrupt ("),
        ("b.safetensors", safetensors_bytes(RANK_65, b"\0" * 4), "NumPy has no arrays of the shape (1, 1, "),
        ("b.safetensors", safetensors_bytes(HUGE_AND_EMPTY), "NumPy has no arrays of the shape (0, 9223372036854775808)"),
        ("b.safetensors", safetensors_bytes(OVERLAPPING, b"\0" * 4), "the header is corrupt ("),
        ("b.safetensors", struct.pack("<Q", 10**6) + b"[" * 10**6, "the header is corrupt ("),
        ("b.safetensors", safetensors_bytes({}), "the file holds no array; save one to it"),
        ("b.safetensors", safetensors_bytes(TWO, b"\0" * 16), "2 arrays; add ':' and one of their names: W, bias"),
        ("b.safetensors:w", safetensors_bytes(TWO, b"\0" * 16), "no array named 'w' (did you mean 'W'?); it holds W, "),
        ("b.safetensors", safetensors_bytes(FP4, b"\0" * 2), "W has the dtype F4, which is not read; save it again as"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_a_safetensors_that_cannot_be_read_says_why_and_the_way_out(tmp_path, text, content, message):
    (tmp_path / "b.safetensors").write_bytes(content)
    with pytest.raises(FileError) as caught:
        open_source(f"{tmp_path}/{text}")
    assert str(caught.value).startswith(f"{tmp_path}/{text}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@given(data=st.data())
def test_damage_anywhere_gives_an_array_or_a_file_error_and_nothing_else(suffix, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(f"{folder}/a{suffix}")
        if suffix == ".npy":
            np.save(path, ROW)
        elif suffix == ".npz":
            data.draw(st.sampled_from([np.savez, np.savez_compressed]))(path, ROW)
        else:
            path.write_bytes(safetensors_bytes(TWELVE, ROW.tobytes()))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.just(len(content)) | st.integers(0, len(content)))])
        refused = ""
        try:
            source = open_source(path)
            part = source.read((slice(None),) * len(source.shape))
        except FileError as error:
            refused = str(error)
        assert path.name in refused if refused else (part.shape, part.dtype) == (source.shape, source.dtype)


# Saving.


@pytest.mark.parametrize(
    ("target", "dtype", "message"),
    [
        ("c.npy", ml_dtypes.bfloat16, "the format of .npy has no name for bfloat16; save to c.safetensors, or convert"),
        ("c.npy", ml_dtypes.float8_e5m2, "the format of .npy has no name for float8_e5m2; save to c.safetensors, or"),
        ("c.npy", object, "it holds Python objects as a pickle, and unpickling can run code, so it is refused"),
        ("c.npy", "U3", "its dtype <U3 is not numeric"),
        ("c.safetensors", "complex128", "the format of .safetensors has no name for complex128; convert to"),
        ("c.npz", "float32", "files that end in .npz are not written; .npy or .safetensors are"),
        ("c", "float32", "files that end in nothing are not written; .npy or .safetensors are"),
        ("folder.npy", "float32", "this is a folder; name a file in it"),
        ("flder/c.npy", "float32", "there is no folder flder in {folder} (did you mean 'folder.npy'?)"),
        (
            "c.safetensors:__metadata__",
            "float32",
            "the format of .safetensors keeps the name __metadata__ for itself; ch",
        ),
        ("old.npy:W", "float32", "an .npy file holds one array, which has no name; leave off ':W'"),
    ],
)
def test_what_cannot_be_saved_says_why_and_the_way_out(tmp_path, target, dtype, message):
    (tmp_path / "folder.npy").mkdir()
    np.save(tmp_path / "old.npy", ROW)
    with pytest.raises(FileError) as caught:
        save(f"{tmp_path}/{target}", (3,), dtype, [])
    assert str(caught.value).startswith(f"{tmp_path}/{target}: ")
    assert message.format(folder=tmp_path.resolve()) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["folder.npy", "old.npy"]


PLACE = (slice(0, 2), slice(0, 3))


def failing():
    yield PLACE, np.zeros((2, 3), np.float32)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([(PLACE, np.zeros((2, 3), np.float32))], FileError, "no part given fills [2:4, 0:3]; give parts for"),
        ([], FileError, "no part given fills [0:4, 0:3]"),
        ([(PLACE, np.zeros(3, np.float32))], FileError, "float32[2, 3] belongs at [0:2, 0:3], and the part given is "
         "float32[3]; convert it first"),
        ([(PLACE, np.zeros((2, 3)))], FileError, "and the part given is float64[2, 3]; convert it first"),
        (failing, KeyboardInterrupt, ""),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["c.npy", "c.safetensors"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, name, parts, error, message):
    (tmp_path / name).write_bytes(b"old")
    with pytest.raises(error) as caught:
        save(tmp_path / name, (4, 3), np.float32, parts() if callable(parts) else parts)
    assert message in str(caught.value)
    assert (tmp_path / name).read_bytes() == b"old"
    assert os.listdir(tmp_path) == [name]


def test_a_full_disk_is_found_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(FileError, match=r"c\.npy: the array needs 12 bytes, and the disk has 10 free; choose another"):
        save(tmp_path / "c.npy", (3,), np.float32, [])
    assert os.listdir(tmp_path) == []


def test_room_is_taken_before_anything_is_written(tmp_path):
    """Writing through a map to a disk that fills up meanwhile would end the process."""
    code = (
        "import resource, sys\nimport numpy as np\nfrom shardwise.runtime.files import save\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "for name in sys.argv[1:]:\n"
        "    try: save(name, (9999,), np.float32, [((slice(0, 9999),), np.zeros(9999, np.float32))])\n"
        "    except ValueError as error: print(error)"
    )
    names = [f"{tmp_path}/c.npy", f"{tmp_path}/c.safetensors"]
    for name in names:
        Path(name).write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "".join(f"{name}: File too large; check the file's permissions and its disk\n" for name in names)
    assert [Path(name).read_bytes() for name in names] == [b"old", b"old"]
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EOPNOTSUPP, None])
@pytest.mark.parametrize("name", ["c.npy", "c.safetensors"])
def test_room_is_taken_where_the_system_knows_no_call_for_it(tmp_path, monkeypatch, name, reason):
    def refused(*_: int) -> None:
        raise OSError(reason, os.strerror(reason))

    if reason is None:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    else:
        monkeypatch.setattr(os, "posix_fallocate", refused, raising=False)
    monkeypatch.setattr(formats, "_ZEROS", 5)
    parts = [((slice(0, 3),), ROW)]
    if reason == errno.ENOSPC:
        with pytest.raises(FileError, match="No space left on device"):
            save(tmp_path / name, (3,), np.float32, parts)
        assert os.listdir(tmp_path) == []
        return
    save(tmp_path / name, (3,), np.float32, parts)
    np.testing.assert_array_equal(open_source(tmp_path / name).read((slice(None),)), ROW)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")  # the suffix of the link, not of what it points to, tells the format
    (tmp_path / "link.npy").symlink_to("real")
    save(tmp_path / "link.npy", (3,), np.float32, [((slice(0, 3),), ROW)])
    assert (tmp_path / "link.npy").is_symlink()
    np.testing.assert_array_equal(np.load(tmp_path / "real"), ROW)


def test_parts_may_repeat_as_those_of_replicas_do(tmp_path):
    whole = ((slice(0, 3),), ROW)
    save(tmp_path / "c.npy", (3,), np.float32, [whole, whole, ((slice(1, 2),), ROW[1:2])])
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), ROW)
