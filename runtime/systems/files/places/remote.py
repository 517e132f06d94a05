"""Files behind URLs, and such as zstd has compressed, which Arrow opens; so import it late."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from runtime.model.errors import SamzaError
from runtime.systems.files.places.locations import MAGIC, OBJECT_STORES, braced, is_data, matches, parted

if TYPE_CHECKING:
    from typing import BinaryIO


def urls_of(url: str) -> list[str]:
    """Return the URLs of the files of a URL, which may be a glob, at any depth."""
    base, path = parted(url)
    fixed = MAGIC.split(path)[0].rpartition("/")[0] if MAGIC.search(path) else path.rstrip("/")
    system, root = remote_system(base + fixed)
    try:
        found = list(_listed(system, root))
    except (OSError, pa.ArrowException) as error:
        raise SamzaError(f"can't look into {url}: {error}; check the URL, and who may read there") from error
    below = [one[len(root) :].lstrip("/") for one in found]
    names = [f"{fixed}/{one}".strip("/") if one else fixed for one in below]
    if MAGIC.search(path):
        names = [name for name in names if any(matches(name, each) for each in braced(path.rstrip("/")))]
    start = len(fixed.split("/")) if fixed else 0
    names = [name for name in names if all(map(is_data, name.split("/")[start:]))]
    if not names:
        raise SamzaError(f"there is no file {url}, nor one below it; check the URL that the stream is bound to")
    return [base + name for name in sorted(names, key=lambda one: one.split("/"))]


def _listed(system: FileSystem, root: str) -> Iterable[str]:
    """Return the paths of all files at a place or below it."""
    (at,) = system.get_file_info([root])
    if at.type == FileType.File:
        return [at.path]
    found = system.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    return [one.path for one in found if one.type == FileType.File]


def opened_file(url: str) -> pa.NativeFile:
    """Return a file open for reading at any place; raises OSError where that can't be."""
    system, path = remote_system(url)
    return system.open_input_file(path)


def unzstd(file: BinaryIO) -> BinaryIO:
    """Return what a file that zstd has compressed stands for."""
    unpacked: BinaryIO = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
    return unpacked


def unpacked_by(codec: str, data: bytes) -> bytes:
    """Return what data stand for that snappy has compressed, or zstd; raises Arrow's own errors."""
    if codec == "snappy":
        size, shift, at = 0, 0, 0
        while True:
            size |= (data[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 128:
                break
        unpacked: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    else:
        unpacked = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return unpacked


def zstd(data: bytes) -> bytes:
    """Return data as zstd compresses them."""
    packed: bytes = pa.Codec("zstd").compress(data, asbytes=True)
    return packed


def remote_system(url: str) -> tuple[FileSystem, str]:
    """Return the file system of a URL, and the path in it; raises SamzaError where Arrow has none for it."""
    base, path = parted(url)
    scheme, _, authority = base.partition(":")
    try:
        system, root = opened_system(f"{OBJECT_STORES.get(scheme.lower(), scheme)}:{authority}")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise SamzaError(
            f"can't open {url}: {error}; a local run opens s3://, gs://, abfss:// and hdfs:// by Arrow, with the "
            "credentials that its own documentation names; Spark opens what its session can: on=Spark(session)"
        ) from error
    return system, f"{root.rstrip('/')}/{path}"


@cache
def opened_system(url: str) -> tuple[FileSystem, str]:
    """Return the file system of a bucket or a server, of which one is enough for all its files."""
    system, root = FileSystem.from_uri(url)
    return system, root
