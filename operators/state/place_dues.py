"""The times at which an operator looks at places of its state, one by one, or at all that have the same bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from operators.core.base import MOST_HELD, NEVER, Key, Store
from operators.state.agenda import Agenda
from operators.state.noted_dues import NOTED, NotedDues

Bounds = tuple[int, ...]
Place = tuple[Bounds, Key]


class PlaceDues:
    """Places by the first time that was said of them, and bounds, which stand for all places that have them.

    A place may be looked at once more at a time that was said of it before, when nothing is due there.
    Those of one time come by their bounds, and with the same bounds by their keys' bytes, behind that which stands for
    all. Places are noted in the store, given what their bytes are, and `load` the places of such. There are few bounds,
    which whoever begins finds anew, and as they are of no key nobody could say where they belong: so they are not.
    """

    def __init__(
        self,
        store: Store,
        bytes_of: Callable[[Place], bytes],
        load: Callable[[list[bytes]], Iterable[Place]],
        most_held: int = MOST_HELD,
    ) -> None:
        self._bytes_of = bytes_of
        self._of_all: Agenda[Bounds] = Agenda(lambda bounds: bounds)
        self._places: NotedDues[Place] = NotedDues(store, NOTED, load, most_held)
        self._times: dict[Place, int] = {}
        """The first time of each place of which something was said since the start."""

    @property
    def unwritten(self) -> int:
        """The number of changes that the store does not have."""
        return self._places.unwritten

    def add(self, place: Place, at: int) -> None:
        """Look at a place by then at the latest."""
        if at < self._times.get(place, NEVER):
            self._times[place] = at
            self._places.add(at, self._bytes_of(place), place)

    def add_all(self, bounds: Bounds, at: int) -> None:
        """Look at all places with these bounds by then at the latest."""
        self._of_all.add(bounds, at)

    def first(self) -> int:
        """Return the first time of all, or NEVER."""
        return min(self._of_all.first(), self._places.first())

    def take_by(self, at: int) -> tuple[int, tuple[Bounds, Key | None]] | None:
        """Remove what is due first, and return it with its time, bounds without a key for all; None if none is due."""
        if (due := self.first()) <= at:
            if self._of_all.first() == due:
                bounds = self._of_all.first_place()
                if self._places.first() > due or bounds <= self._places.first_place()[0]:
                    self._of_all.take()
                    return due, (bounds, None)
            due, place = self._places.drop()
            # Else it lies at a later time than was said since, or at an earlier one that the store has had.
            if self._times.get(place) == due:
                del self._times[place]
            return due, place
        return None

    def write_back(self) -> None:
        """Put what has changed into the store."""
        self._places.write_back()

    def forget(self) -> None:
        """Drop what is beside the store, which was rolled back; bounds stay, and those taken are to be added again."""
        self._places.forget()
        self._times.clear()
