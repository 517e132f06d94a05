"""The ring file: the newest records are there, whole and in order, whoever was killed while it wrote."""

import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from samza_dsl.room.ring import BLOCK_BYTES, RingReader, RingWriter

SIZE = 16 * BLOCK_BYTES
contents = st.binary(max_size=1_800)


def opened(path, size=SIZE):
    found = RingWriter.opened(path, size)
    assert found is not None
    return found


def read(path):
    with closing(RingReader(path)) as reader:
        return [one.content for one in reader.news()]


@given(st.lists(st.lists(contents, max_size=12), max_size=4))
def test_what_was_appended_last_is_read_in_its_order_and_the_file_does_not_grow(lives):
    with tempfile.TemporaryDirectory() as folder:
        path, written = Path(folder) / "ring", []
        for life in lives:
            with closing(opened(path)) as ring:
                for content in life:
                    ring.append(content)
                    written.append(content)
            found = read(path)
            assert found == written[len(written) - len(found) :]
            assert path.stat().st_size == SIZE
            # A record takes at most four blocks, and at most three are left at the end.
            assert len(found) >= min(len(written), 2)


@given(st.lists(st.integers(1, 5).flatmap(lambda n: st.lists(contents, min_size=n, max_size=n)), max_size=8))
def test_a_reader_beside_is_told_each_record_once_if_it_is_not_too_slow(parts):
    with tempfile.TemporaryDirectory() as folder:
        path, written, heard = Path(folder) / "ring", [], []
        with closing(RingReader(path)) as reader:
            assert reader.news() == []
            with closing(opened(path, 64 * BLOCK_BYTES)) as ring:
                for part in parts:
                    for content in part:
                        ring.append(content)
                        written.append(content)
                    heard += reader.news()
                    assert reader.news() == []
        assert [one.content for one in heard] == written
        assert [one.number for one in heard] == [*range(len(written))]


@given(st.lists(contents, min_size=1, max_size=20), st.data())
def test_of_a_torn_write_nothing_is_read_and_the_next_life_goes_on(written, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ring"
        with closing(opened(path)) as ring:
            for content in written[:-1]:
                ring.append(content)
            before = path.read_bytes()
            ring.append(written[-1])
        after = path.read_bytes()
        changed = [at for at in range(SIZE) if before[at] != after[at]]
        # The disk has taken any blocks of the last write, and not the others.
        blocks = sorted({at // BLOCK_BYTES for at in changed})
        kept = data.draw(st.sets(st.sampled_from(blocks))) if blocks else set()
        torn = bytearray(before)
        for block in kept:
            torn[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = after[
                block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES
            ]
        path.write_bytes(torn)
        found = read(path)
        assert all(one in written for one in found)
        with closing(opened(path)) as ring:
            ring.append(b"next")
        found = read(path)
        assert found[-1] == b"next" and all(one in written for one in found[:-1])


@given(st.lists(contents, max_size=12), st.integers(0, SIZE - 1), st.binary(min_size=1, max_size=64))
def test_bytes_that_have_turned_are_never_read_as_a_record(written, at, garbage):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ring"
        with closing(opened(path)) as ring:
            for content in written:
                ring.append(content)
        data = bytearray(path.read_bytes())
        data[at : at + len(garbage)] = garbage
        path.write_bytes(data[:SIZE])
        assert all(one in written for one in read(path))
        with closing(opened(path)) as ring:
            ring.append(b"next")
        assert read(path)[-1] == b"next"


def test_there_is_one_writer(tmp_path):
    with closing(opened(tmp_path / "ring")):
        assert RingWriter.opened(tmp_path / "ring", SIZE) is None
    opened(tmp_path / "ring").close()


def test_another_size_makes_it_anew_and_a_reader_notices(tmp_path):
    path = tmp_path / "ring"
    with closing(RingReader(path)) as reader:
        for size in (SIZE, 2 * SIZE):
            with closing(opened(path, size)) as ring:
                ring.append(b"a")
            assert [one.content for one in reader.news()] == [b"a"]
            assert path.stat().st_size == size


def test_a_file_cut_short_is_made_anew(tmp_path):
    path = tmp_path / "ring"
    with closing(opened(path)) as ring:
        ring.append(b"a")
    path.write_bytes(path.read_bytes()[:5])
    assert read(path) == []
    with closing(opened(path)) as ring:
        ring.append(b"b")
    assert read(path) == [b"b"]
