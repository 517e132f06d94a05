"""The fingerprint of a file, list or frame, by which another one in its place is noticed."""

from __future__ import annotations

from zlib import crc32

from runtime.encoding.serdes import Evolving
from runtime.ports.source import ReplaceableSource, UncountedSource
from runtime.ports.streams import replaced_error


class Fingerprint:
    """The fingerprint of one partition of a bound input; its task's thread alone uses it.

    Invariant: what was asked for last is not read again where more is asked for then, as tables do at each commit.
    """

    def __init__(self, source: ReplaceableSource, stream: str, partition: int) -> None:
        self._source, self._stream, self._partition = source, stream, partition
        self._records, self._sum = 0, 0
        self._has_bytes = True

    def number(self, records: int) -> int:
        """Return a number above 0 that stands for the first records; 0 where there are none, or they have no bytes.

        >>> from runtime.systems.memory.lists import ListSource
        >>> one, grown = (Fingerprint(ListSource(values), "letters", 0) for values in (["a"], ["a", "b"]))
        >>> one.number(1) == grown.number(1) != grown.number(2)
        True
        >>> Fingerprint(ListSource([]), "letters", 0).number(1), Fingerprint(ListSource([object()]), "any", 0).number(1)
        (0, 0)
        """
        if not self._has_bytes:
            return 0
        if records < self._records:
            self._records = self._sum = 0
        try:
            for record in self._source.stored(self._partition, self._records, records):
                self._sum = crc32(Evolving().encode(record), self._sum)
                self._records += 1
        except Exception:
            # A value of a class of the user's, which is kept nowhere, has no bytes; what can't be read tells so where
            # it is read.
            self._has_bytes = False
            return 0
        return self._sum + 1 if self._records else 0

    def checked(self, known: int, offset: int, is_table: bool) -> int:
        """Return the number for who has read up to an offset, and knew a number then, 0 for none.

        Raises `Damaged` where it is another one, or where there are fewer records than were read.
        """
        # Rows of a table that were changed count like new ones; of other inputs that would take the reading of
        # everything once more, and what they begin with tells most others from them.
        found = self.number(offset if is_table else 1)
        if found and known not in (0, found):
            raise replaced_error(self._stream, self._partition, offset)
        source, partition = self._source, self._partition
        ends = source.known(partition) if isinstance(source, UncountedSource) else source.offsets(partition)
        if ends.ended and offset > ends.end:
            source.read(partition, offset)  # which tells that it is shorter; else it would be taken for done
        return found or known
