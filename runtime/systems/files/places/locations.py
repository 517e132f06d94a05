"""The files that a path, a glob or a URL stands for, with the fields that the names of their folders give."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from operators.core.wording import shown
from runtime.model.errors import SamzaError, SerdeError
from runtime.model.urls import shown_file

if TYPE_CHECKING:
    import pyarrow as pa

FolderFields = tuple[tuple[str, str | None], ...]
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Stands for None in the name of a folder, as Hive and Spark write it."""
LONGEST_NAME = 255
"""The bytes that a name of a folder has at most, on Linux and in HDFS."""
OBJECT_STORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss"}
"""Schemes whose first name is that of a bucket, and what Arrow calls them."""
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
"""Begins a URL: a scheme of one letter is a drive."""
_ESCAPED = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_FIELD = re.compile(r"([^=]+)=(.*)", re.DOTALL)
MAGIC = re.compile(r"[*?\[{]")
_SIGN = re.compile(r"\[[^\]]*\]|[*?\[]")
_ESCAPED_SIGN = re.compile(r"\[([*?[])\]")
_BRACES = re.compile(r"(.*?)\{([^{}]*)\}(.*)", re.DOTALL)


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL, which Arrow opens."""

    url: str

    @property
    def name(self) -> str:
        """The name of the file without its folders."""
        return shown_file(self.url).rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The end of its name, as of a `Path`."""
        return Path(self.name).suffix

    def absolute(self) -> RemoteFile:
        """Return it, whatever the directory that a process works in."""
        return self

    def opened(self) -> pa.NativeFile:
        """Return it open for reading at any place; raises OSError where that can't be."""
        with needs_pyarrow(f"{self} needs", "files"):
            from runtime.systems.files.places.remote import opened_file
        return opened_file(self.url)

    def __str__(self) -> str:
        return shown_file(self.url)


@dataclass(frozen=True)
class DataFile:
    """A file of an input, and the fields that the names of its folders give: `day=2026-01-01/` gives `day`."""

    path: Path | RemoteFile
    fields: FolderFields = ()


class FoundFile(NamedTuple):
    """A file that was found, with its size in bytes, and when it was written last, in seconds since the epoch."""

    file: DataFile
    size: int
    modified_s: float


def is_remote(what: str | Path) -> bool:
    """Whether something is a URL of what lies in another file system than this machine's.

    >>> is_remote("s3a://lake/flights"), is_remote("file:///data"), is_remote("data/flights.jsonl")
    (True, False, False)
    """
    scheme = SCHEME.match(str(what))
    return scheme is not None and scheme[1].lower() != "file"


def of_http(url: str) -> bool:
    """Whether a URL is one of HTTP: its names are escaped, and behind "?" stands no name."""
    return url.partition(":")[0].lower() in ("http", "https")


def url_of(what: str | Path) -> str:
    """Return a URL as it is to be written, where a `Path` was made of it, which takes slashes together.

    >>> url_of(Path("s3a://lake/flights"))
    's3a://lake/flights'
    """
    scheme, _, rest = str(what).partition(":/")
    return f"{scheme}://{rest.lstrip('/')}" if scheme.lower() in OBJECT_STORES else str(what)


def local_path(what: str | Path) -> Path:
    """Return the path of what lies in a file system of this machine.

    >>> local_path("file:///data/my%20flights").as_posix()
    '/data/my flights'
    """
    said = str(what)
    return Path(unquote(urlsplit(said).path)) if SCHEME.match(said) else Path(what)


def files_of(what: str | Path) -> list[DataFile]:
    """Return the files of an input, one per partition, by name: one, or those of a folder or a glob, at any depth.

    What begins with a dot or an underscore is no data, or not finished. Raises SamzaError when nothing is there.
    """
    if is_remote(what):
        files = [one.file for one in found_files(what)]
        if not files:
            wrong = (
                f"there is no file {shown_file(str(what))}, nor one below it; check the URL that the stream is bound to"
            )
            raise SamzaError(wrong)
        return files
    path = local_path(what)
    found = _found_at(path)
    if not found:
        is_glob = MAGIC.search(str(path))
        raise SamzaError(
            f"there is no file or directory that {path} matches; check the pattern that the stream is bound to"
            if is_glob
            else f"there is no file or directory {path}; check the path that the stream is bound to"
        )
    paths = _data_in(found)
    if not paths:
        raise SamzaError(f"{path} holds no files to read")
    return [DataFile(file, fields_in(file.as_posix())) for file in paths]


def found_files(what: str | Path) -> list[FoundFile]:
    """Return the files that are in a place now, by name; none where none is there yet. Raises SamzaError."""
    if is_remote(what):
        with needs_pyarrow(f"{what} needs", "files"):
            from runtime.systems.files.places.remote import listed_files
        return [
            FoundFile(DataFile(RemoteFile(url), fields_in(unquote(url) if of_http(url) else url)), size, modified_s)
            for url, size, modified_s in listed_files(url_of(what))
        ]
    found = []
    for path in _data_in(_found_at(local_path(what))):
        with suppress(FileNotFoundError, NotADirectoryError):  # it was moved away meanwhile
            about = path.stat()
            found.append(FoundFile(DataFile(path, fields_in(path.as_posix())), about.st_size, about.st_mtime))
    return found


def fields_in(path: str) -> FolderFields:
    """Return the fields that the names of folders on a path give.

    >>> fields_in("flights/day=2026-01-01/city=S%C3%A3o Paulo/part-1.parquet")
    (('day', '2026-01-01'), ('city', 'São Paulo'))
    """
    found = (_FIELD.fullmatch(folder) for folder in path.split("/")[:-1])
    return tuple((unquote(one[1]), None if one[2] == NO_VALUE else unquote(one[2])) for one in found if one)


def folder_name(field: str, value: object) -> str:
    """Return the name of the folder that gives a field a value, as Hive and Spark write it; raises SerdeError.

    >>> folder_name("late", True), folder_name("city", "a/b"), folder_name("n", None)
    ('late=true', 'city=a%2Fb', 'n=__HIVE_DEFAULT_PARTITION__')
    """
    text = NO_VALUE if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if value in ("", NO_VALUE):
        raise SerdeError(
            f"a folder can't say {field}={value!r}, which whoever reads it takes for None: filter such rows out, or "
            "map the field to another text"
        )
    name = f"{_ESCAPED.sub(_escape, field)}={_ESCAPED.sub(_escape, text)}"
    if (size := len(name.encode())) > LONGEST_NAME:
        raise SerdeError(
            f"a folder can't say {field}={shown(text[:40])}...: its name would have {size} bytes, of {LONGEST_NAME} at "
            "most: filter such rows out, or map the field to a shorter text"
        )
    return name


def _escape(found: re.Match[str]) -> str:
    return f"%{ord(found[0]):02X}"


def braced(pattern: str) -> list[str]:
    """Return the globs that one with alternatives in braces stands for.

    >>> braced("day={01,02}/*.{csv,csv.gz}")
    ['day=01/*.csv', 'day=01/*.csv.gz', 'day=02/*.csv', 'day=02/*.csv.gz']
    """
    found = _BRACES.fullmatch(pattern)
    if found is None:
        return [pattern]
    return [one for each in found[2].split(",") for one in braced(found[1] + each + found[3])]


def needs_pyarrow(what: str = "Parquet needs", extra: str = "parquet") -> AbstractContextManager[None]:
    """Say what to install where a block can't import pyarrow."""
    return needs("pyarrow", what, extra)


@contextmanager
def needs(package: str, what: str, extra: str) -> Iterator[None]:
    """Say what to install where a block can't import a package."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise SamzaError(f"{what} {package}, which is not installed: pip install 'samza-dsl[{extra}]'") from error


def parted(url: str) -> tuple[str, str]:
    """Return what names the file system of a URL, and the path in it.

    >>> parted("s3a://lake/flights/1.csv"), parted("dbfs:/flights")
    (('s3a://lake/', 'flights/1.csv'), ('dbfs:/', 'flights'))
    """
    found = re.match(r"([^:]+:(?://[^/]*)?)/*(.*)", url, re.DOTALL)
    assert found is not None, "a URL has a scheme"
    return f"{found[1]}/", found[2]


def _found_at(path: Path) -> list[Path]:
    """Return the file or folder of a path, or those that it matches as a glob."""
    return [path] if path.exists() else sorted({Path(one) for each in braced(str(path)) for one in _matching(each)})


def _data_in(found: Iterable[Path]) -> list[Path]:
    """Return files, and the data files of folders, each once."""
    return [*dict.fromkeys(file for one in found for file in (_below(one) if one.is_dir() else [one]))]


def _matching(pattern: str) -> list[str]:
    """Return what a glob finds, but what is no data in or below the first folder that is not spelled out."""
    fixed = len(MAGIC.split(pattern)[0].split("/")) - 1
    return [one for one in glob.glob(pattern, recursive=True) if all(map(is_data, one.rstrip("/").split("/")[fixed:]))]


def _below(directory: Path) -> Iterator[Path]:
    """Yield the data files of a directory, folder by folder, each by name."""
    for path in sorted(directory.iterdir()):
        if is_data(path.name):
            if path.is_dir():
                # A link to a folder above would have each file again at each turn.
                if not path.is_symlink() or not directory.resolve().is_relative_to(path.resolve()):
                    yield from _below(path)
            else:
                yield path


def is_data(name: str) -> bool:
    """Whether a file or folder is data, or finished: others have a dot or an underscore in front.

    >>> is_data("_SUCCESS"), is_data("part-1.parquet"), is_data("_day=2026-01-01")
    (False, True, True)
    """
    return name[:1] not in {".", "_"} or (name[:1] == "_" and "=" in name)


def matches(path: str, pattern: str) -> bool:
    """Whether a glob stands for a path, or for a folder above it.

    >>> matches("a/day=1/x/1.csv", "a/day=*"), matches("a/b/c.csv", "a/*.csv"), matches("a/b/c.csv", "a/**/*.csv")
    (True, False, True)
    """
    return _matches(path.split("/"), pattern.split("/"))


def globs_of(what: str | Path) -> list[str]:
    """Return the globs by which files of a path, a glob or a URL are found, in one spelling for each place.

    >>> globs_of("s3a://key:secret@lake/in/*.{csv,jsonl}")
    ['s3://lake/in/*.csv', 's3://lake/in/*.jsonl']
    """
    if is_remote(what):
        scheme, colon, rest = shown_file(url_of(what)).partition(":")
        return braced(f"{OBJECT_STORES.get(scheme.lower(), scheme)}{colon}{rest.rstrip('/')}")
    path = local_path(what)
    # What has this very name is read alone once it is there.
    found = [glob.escape(str(path.resolve()))]
    if path.exists() or not MAGIC.search(str(path)):
        return found
    for parts in (Path(each).parts for each in braced(str(path))):
        fixed = [*takewhile(lambda part: not MAGIC.search(part), parts)]
        found.append("/".join([glob.escape(str(Path(*fixed).resolve())), *parts[len(fixed) :]]))
    return found


def may_find(pattern: str, written: str) -> bool:
    """Whether files are found by a glob that are written under names which another glob, or a path, stands for.

    >>> may_find("/in/*.jsonl", "/in/part-*.jsonl"), may_find("/in/*.jsonl", "/in/part-*.parquet")
    (True, False)
    >>> may_find("/lake/new", "/lake/day=*/part-*.parquet"), may_find("/lake", "/lake/day=*/part-*.parquet")
    (False, True)
    """
    patterns, names = pattern.split("/"), written.split("/")
    spelled_out = sum(1 for _ in takewhile(lambda one: _name_in(one) is not None, patterns))
    return all(map(is_data, names[spelled_out:])) and _matches(names, patterns, _may_agree)


def _name_in(part: str) -> str | None:
    """Return the name that a part of a glob without braces spells out; None where it stands for several."""
    return None if _SIGN.search(_ESCAPED_SIGN.sub("", part)) else _ESCAPED_SIGN.sub(r"\1", part)


def _may_agree(one: str, other: str) -> bool:
    """Whether some name may be one that each of two globs stands for; where both stand for several, by their ends."""
    name, other_name = _name_in(one), _name_in(other)
    if name is not None:
        return fnmatchcase(name, other)
    if other_name is not None:
        return fnmatchcase(other_name, one)
    (start, *_, end), (other_start, *_, other_end) = _SIGN.split(one), _SIGN.split(other)
    starts = start.startswith(other_start) or other_start.startswith(start)
    return starts and (end.endswith(other_end) or other_end.endswith(end))


def _matches(names: list[str], patterns: list[str], agree: Callable[[str, str], bool] = fnmatchcase) -> bool:
    if not patterns:
        return True
    if patterns[0] == "**":
        return any(_matches(names[skipped:], patterns[1:], agree) for skipped in range(len(names) + 1))
    return bool(names) and agree(names[0], patterns[0]) and _matches(names[1:], patterns[1:], agree)
