"""Charts are pictures that any reader of XML can read, whatever the numbers."""

from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.charts import WIDTH, Dot, dots, linear_ticks, lines, log_ticks, spaced
from benchmarks.figures import Chart

positive = st.floats(1e-3, 1e6)
rows = st.lists(
    st.builds(
        lambda label, values, bar: Dot(label, sorted(values)[1], min(values), max(values), bar),
        st.text("ab <&>\"'", max_size=10),
        st.tuples(positive, positive, positive),
        st.none() | positive,
    ),
    min_size=1,
    max_size=5,
)
points = st.lists(st.tuples(positive, positive), min_size=1, max_size=5)


def shapes(svg, kind):
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{kind}"))


@given(rows)
def test_every_value_is_a_dot_in_the_picture(found):
    circles = shapes(dots("title", found), "circle")
    assert len(circles) == len(found)
    places = [float(circle.get("cx")) for circle in circles]
    assert all(0 <= x <= WIDTH for x in places)
    by_value = sorted(zip((row.value for row in found), places, strict=True))
    assert all(x <= y for (_, x), (_, y) in pairwise(by_value))


@given(
    st.dictionaries(st.text("ab<", max_size=3), points, min_size=1, max_size=3), st.sampled_from(["", "x", "y", "xy"])
)
def test_every_point_lies_in_the_picture(found, log):
    svg = lines("title", Chart("x", "y", found, log))
    circles = shapes(svg, "circle")
    assert len(circles) == sum(map(len, found.values()))
    assert len(shapes(svg, "polyline")) == len(found)
    assert all(0 <= float(circle.get("cx")) <= WIDTH for circle in circles)


@given(positive, st.floats(1.3, 1e6))
def test_an_axis_has_a_few_ticks_in_its_range(least, factor):
    ticks = log_ticks(least, least * factor)
    assert ticks == sorted(ticks) and all(least <= tick <= least * factor for tick in ticks)
    assert len(ticks) <= 12
    from_zero = linear_ticks(least)
    assert from_zero[0] == 0 and 1 < len(from_zero) <= 7 and from_zero[-1] <= least * 1.001


@given(st.dictionaries(st.text("ab", min_size=1, max_size=3), st.floats(0, 300), max_size=5))
def test_no_label_lies_on_another(places):
    found = spaced([(y, name) for name, y in places.items()])
    assert found.keys() == places.keys()
    assert all(y - x >= 15 - 1e-9 for x, y in pairwise(sorted(found.values())))
