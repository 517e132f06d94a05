"""What is due by time, of places and of items, against a plain list of all."""

from hypothesis import given
from hypothesis import strategies as st

from operators.core.base import NEVER
from operators.state.agenda import Agenda, DueItems

times = st.integers(-20, 60)


@given(st.lists(st.tuples(st.sampled_from("abcde"), times) | times | st.sampled_from(["take", "first", "clear"])))
def test_an_agenda_gives_places_by_their_earliest_time_and_then_by_rank(steps):
    agenda, known = Agenda(rank=lambda place: -ord(place)), {}
    for step in [*steps, "take", "take"]:
        if step == "clear":
            agenda.clear()
            known.clear()
        elif step == "first":
            assert agenda.first() == min(known.values(), default=NEVER)
        elif step == "take":
            if known:
                place = min(known, key=lambda place: (known[place], -ord(place)))
                assert agenda.take() == (known.pop(place), place)
        elif isinstance(step, int):
            place = min(known, key=lambda place: (known[place], -ord(place)), default="")
            is_due = known.get(place, NEVER) <= step
            assert agenda.take_by(step) == ((known.pop(place), place) if is_due else None)
        else:
            place, at = step
            agenda.add(place, at)
            known[place] = min(at, known.get(place, NEVER))


@given(st.integers(0, 200), st.lists(times | st.tuples(st.just("until"), times), max_size=60))
def test_items_are_taken_when_they_are_due_and_in_order(span, steps):
    items, known = DueItems(span), []
    for number, step in enumerate([*steps, ("until", 100)]):
        if isinstance(step, int):
            items.add((step, number, "value"))
            known.append((step, number, "value"))
        else:
            _, until = step
            assert items.take(until) == sorted(item for item in known if item[0] <= until)
            known = [item for item in known if item[0] > until]
        assert items.first() == min((item[0] for item in known), default=NEVER)
    assert known == []
