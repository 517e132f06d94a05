"""Random stateless operators, as a pipeline and as what a message-by-message interpreter makes of them."""

from collections import Counter

from hypothesis import strategies as st

from samza_dsl import App


@st.composite
def shapes(draw):
    """Draw operators: (kind, parents, number); the first is the input."""
    nodes = [("input", (), 0)]
    streams = [0]
    for _ in range(draw(st.integers(1, 14))):
        kind = draw(st.sampled_from(["filter", "map", "map", "flat_map", "branch", "merge"]))
        above = draw(st.sampled_from(streams))
        number = draw(st.integers(1, 3))
        if kind == "merge":
            others = sorted({draw(st.sampled_from(streams)) for _ in range(2)} - {above})
            if not others:
                continue
            nodes.append(("merge", (above, *others), number))
        else:
            nodes.append((kind, (above,), number))
        if kind == "branch":
            streams += [len(nodes), len(nodes) + 1]
            nodes += [("left", (len(nodes) - 1,), 0), ("right", (len(nodes) - 1,), 0)]
        else:
            streams.append(len(nodes) - 1)
    outputs = draw(st.integers(1, 3))
    return nodes, outputs


def kept(number):
    return lambda n: n % (number + 1) != 0


def mapped(number):
    return lambda n: n * 3 + number


def several(number):
    return lambda n: [n + extra for extra in range(n % (number + 1))]


def chosen(number):
    return lambda n: ((), "left", ("right",), ("left", "right"))[(n + number) % 4]


FUNCTIONS = {"filter": kept, "map": mapped, "flat_map": several}


def ends(nodes):
    """Return the streams that are sent to outputs: those that nobody reads, and every third."""
    read = {parent for _, parents, _ in nodes for parent in parents}
    return [
        place for place, (kind, _, _) in enumerate(nodes) if kind != "branch" and (place not in read or not place % 3)
    ]


def app_of(nodes, outputs):
    app = App("law")
    streams = {0: app.input("numbers", value=int)}
    for place, (kind, parents, number) in enumerate(nodes[1:], 1):
        above, id = streams[parents[0]], f"{kind}-{place}"
        if kind == "branch":
            streams[place] = above.branch(chosen(number), into=("left", "right"), op_id=id)
        elif kind in ("left", "right"):
            streams[place] = above[kind]
        elif kind == "merge":
            streams[place] = above.merge(*(streams[parent] for parent in parents[1:]), op_id=id)
        else:
            streams[place] = getattr(above, kind)(FUNCTIONS[kind](number), op_id=id)
    made = [app.output(f"out-{n}") for n in range(outputs)]
    for n, place in enumerate(ends(nodes)):
        streams[place].send_to(made[n % outputs], op_id=f"send-{place}")
    return app


def interpreted(nodes, outputs, values):
    """Take each message through the operators, one by one; return per output (row, value)s, and emitted counts."""
    found = {f"send_to-out-{n}": Counter() for n in range(outputs)}
    emitted = Counter()
    sent = {place: f"send_to-out-{n % outputs}" for n, place in enumerate(ends(nodes))}

    def emit(place, row, value):
        emitted[place] += 1
        if place in sent:
            found[sent[place]][row, value] += 1
        for child, (kind, parents, number) in enumerate(nodes):
            if place in parents:
                receive(child, kind, number, row, value)

    def receive(child, kind, number, row, value):
        if kind == "filter" and kept(number)(value):
            emit(child, row, value)
        elif kind == "map":
            emit(child, row, mapped(number)(value))
        elif kind == "flat_map":
            for one in several(number)(value):
                emit(child, row, one)
        elif kind == "merge":
            emit(child, row, value)
        elif kind == "branch":
            emitted[child] += 1
            choice = chosen(number)(value)
            for arm, name in ((child + 1, "left"), (child + 2, "right")):
                if name in ((choice,) if isinstance(choice, str) else choice):
                    emit(arm, row, value)

    for row, value in enumerate(values):
        emit(0, row, value)
    return found, emitted
