"""The templates with state: windows and what may follow them, scan, process, deduplicate and a join of two streams."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.programs.sweep.aggregations import Sums
from benchmarks.programs.sweep.templates import Text

SECOND = 1_000


def _window(text: Text, windows: str, sums: Sums) -> str:
    """Say a window of the pipeline, and return the variable of its panes."""
    number = len(text.outputs)
    panes = f"panes_{number}"
    text.functions += sums.definition()
    text.says(f'.window({windows}, {sums.said()}, op_id="window-{number}")', panes, of="stream")
    return panes


def _added(text: Text, sums: Sums) -> list[str]:
    """Return the lines that add an event to the sums of its key in the dict `keys`."""
    return [
        f"sums = keys.get({text.key})",
        "if sums is None:",
        f"    keys[{text.key}] = [{sums.first()}]",
        "else:",
        *(f"    {line}" for line in sums.more("sums")),
    ]


def tumbling(text: Text, number: int) -> None:
    """Tumbling windows; what is late is dropped."""
    length = text.chance.choice((1, 10, 60)) * SECOND
    sums, state = Sums.drawn(text.chance, f"Sums{number}"), f"windows_{number}"
    panes = _window(text, f"tumbling(milliseconds={length})", sums)
    text.keeps(state, "{}")
    is_one_number = len(sums.sums) == 1 and sums.sums[0].name in ("number", "sum")
    add = _added(text, sums)
    if is_one_number:
        add = [f"keys[{text.key}] = keys.get({text.key}, 0) + {sums.sums[0].first}"]
    lines = [f"start = at - at % {length}", f"if start + {length} > watermark:"]
    if not text.late:
        lines = [f"start = at - at % {length}"]
    text.does(*lines)
    text.does(
        f"keys = self.{state}.get(start)",
        "if keys is None:",
        f"    keys = self.{state}[start] = {{}}",
        *add,
    )
    text.fires += [
        f"for start in sorted(start for start in self.{state} if start + {length} <= watermark):",
        f"    end = start + {length}",
        f"    for key, sums in self.{state}.pop(start).items():",
    ]
    _follow(text, number, panes, sums, "sums" if is_one_number else sums.result("sums"), length)


def hopping(text: Text, number: int) -> None:
    """Hopping windows, which by hand are kept by the step and put together when one ends."""
    every = text.chance.choice((1, 10)) * SECOND
    length = every * text.chance.randrange(2, 7)
    sums, state = Sums.drawn(text.chance, f"Sums{number}"), f"steps_{number}"
    panes = _window(text, f"hopping(milliseconds={length}, every_ms={every})", sums)
    text.keeps(state, "{}")
    text.keeps(f"next_end_{number}", "END")
    text.does(
        f"step = at - at % {every}",
        f"keys = self.{state}.get(step)",
        "if keys is None:",
        f"    keys = self.{state}[step] = {{}}",
        f"    self.next_end_{number} = min(self.next_end_{number}, step + {every})",
        *_added(text, sums),
    )
    text.fires += [
        f"while self.{state} and self.next_end_{number} <= watermark:",
        f"    end = self.next_end_{number}",
        f"    start = end - {length}",
        "    window = {}",
        f"    for step in range(start, end, {every}):",
        f"        for key, more in self.{state}.get(step, {{}}).items():",
        "            sums = window.get(key)",
        "            if sums is None:",
        "                window[key] = [*more]",
        "            else:",
        *(f"                {line}" for line in sums.merged("sums", "more")),
        f"    self.{state}.pop(start, None)",
        f"    self.next_end_{number} = end + {every}",
        "    for key, sums in window.items():",
    ]
    _follow(text, number, panes, sums, sums.result("sums"), every)


def sessions(text: Text, number: int) -> None:
    """Sessions, by hand a list of open ones for each key, and a heap of when they end."""
    gap = text.chance.choice((1, 5, 20)) * SECOND
    sums, state, due = Sums.drawn(text.chance, f"Sums{number}", 2), f"sessions_{number}", f"due_{number}"
    panes = _window(text, f"session(milliseconds={gap})", sums)
    text.keeps(state, "{}")
    text.keeps(due, "[]")
    if text.late:
        text.does("if at >= watermark:")
    text.does(
        f"open_ = self.{state}.get({text.key})",
        "if open_ is None:",
        f"    open_ = self.{state}[{text.key}] = []",
        "for one in open_:",
        f"    if one[0] < at + {gap} and at < one[1]:",
        f"        one[0], one[1] = min(one[0], at), max(one[1], at + {gap})",
        *(f"        {line}" for line in sums.more("one")),
        "        break",
        "else:",
        f"    open_.append([at, at + {gap}, {sums.first()}])",
        f"    heapq.heappush(self.{due}, (at + {gap}, {text.key}))",
        "if len(open_) > 1:",
        "    open_.sort(key=lambda one: one[0])",
        "    whole = open_[:1]",
        "    for one in open_[1:]:",
        "        if one[0] < whole[-1][1]:",
        "            last = whole[-1]",
        "            last[1] = max(last[1], one[1])",
        *(f"            {line}" for line in sums.merged("last", "one")),
        "        else:",
        "            whole.append(one)",
        f"    self.{state}[{text.key}] = whole",
    )
    text.fires += [
        f"while self.{due} and self.{due}[0][0] <= watermark:",
        f"    end, key = heapq.heappop(self.{due})",
        f"    open_ = self.{state}.get(key, [])",
        "    for one in open_:",
        "        if one[0] < end < one[1]:",
        f"            heapq.heappush(self.{due}, (one[1], key))",
        "            break",
        "        if one[1] == end:",
        "            open_.remove(one)",
        "            if not open_:",
        f"                del self.{state}[key]",
        "            break",
        "    else:",
        "        continue",
        "    if one[1] == end:",
        "        start, sums = one[0], one",
    ]
    _follow(text, number, panes, sums, sums.result("sums"), None)


def _follow(text: Text, number: int, panes: str, sums: Sums, result: str, period: int | None) -> None:
    """Write panes as they are, or some of them, or put those of one end together again."""
    output, inside = text.output(), "        "
    kind = text.chance.choice(("map", "map", "filter", "top", "total"))
    value = sums.number()
    if kind in ("top", "total") and (period is None or text.late):
        kind = "map"
    text.fires.append(f"{inside}value = {result}")
    if kind == "filter":
        least = text.chance.randrange(2, 6)
        text.says(f".filter(lambda pane: pane.value{value} > {least})", panes)
        text.fires += [f"{inside}if value{value} > {least}:"]
        inside += "    "
    if kind in ("map", "filter"):
        text.says(".map(lambda pane: (pane.key, pane.start, pane.value))", panes)
        text.fires.append(f'{inside}self.out["{output}"].append((key, start, value))')
    else:
        text.fires.append(f"{inside}self.ends_{number}.setdefault(end - 1, []).append((key, value))")
        text.keeps(f"ends_{number}", "{}")
        text.says(f'.partition_by(lambda pane: pane.end, op_id="by-end-{number}")', panes)
        _again(text, number, panes, kind, value or "", period or 1)
    text.pipeline.append(f'{panes}.send_to(app.output("{output}"))')


def _again(text: Text, number: int, panes: str, kind: str, value: str, period: int) -> None:
    """Say a second window, of all panes that end together, and what is done for it by hand."""
    output = text.outputs[-1]
    text.fires += [
        f"for at in sorted(at for at in self.ends_{number} if at - at % {period} + {period} <= watermark):",
        f"    found = self.ends_{number}.pop(at)",
        "    end = at + 1",
    ]
    if kind == "top":
        text.says(
            f".window(tumbling(milliseconds={period}), "
            f'top_k(5, by=lambda pane: pane.value{value}, then=lambda pane: pane.key), op_id="top-{number}")',
            panes,
        )
        text.says(".map(lambda top: (top.key, [(pane.key, pane.value) for pane in top.value]))", panes)
        text.fires += [
            f"    found.sort(key=lambda one: (-one[1]{value}, one[0]))",
            f'    self.out["{output}"].append((end, found[:5]))',
        ]
    else:
        text.says(
            f'.window(tumbling(milliseconds={period}), total(lambda pane: pane.value{value}), op_id="total-{number}")',
            panes,
        )
        text.says(".map(lambda pane: (pane.key, pane.value))", panes)
        # Means are floats, whose sum of ours is the nearest to the exact one.
        add = "fsum" if value == ".mean" else "sum"
        text.fires.append(f'    self.out["{output}"].append((end, {add}(one[1]{value} for one in found)))')


def scan(text: Text, number: int) -> None:
    """A running sum per key."""
    output, state = text.output(), f"running_{number}"
    text.pipeline.append(
        "stream.scan(lambda sum, e: sum + e.amount, init=int, emit=lambda key, sum: (key, sum), "
        f'op_id="scan-{number}")'
        f'.send_to(app.output("{output}"))'
    )
    text.keeps(state, "{}")
    text.does(
        f"sum_ = self.{state}[{text.key}] = self.{state}.get({text.key}, 0) + amount",
        f'self.out["{output}"].append(({text.key}, sum_))',
    )


def process(text: Text, number: int) -> None:
    """Every so manyth event of a key, with the sum since the last one."""
    output, state, every = text.output(), f"counted_{number}", text.chance.randrange(3, 12)
    text.function(
        f"def each_{every}(e, context):",
        "    number, sum = context.state",
        f"    if number + 1 == {every}:",
        "        context.state = (0, 0)",
        "        return [(context.key, e.id, sum + e.amount)]",
        "    context.state = (number + 1, sum + e.amount)",
        "    return []",
    )
    text.pipeline.append(
        f'stream.process(each_{every}, init=lambda: (0, 0), op_id="process-{number}").send_to(app.output("{output}"))',
    )
    text.keeps(state, "{}")
    text.does(
        f"number, sum_ = self.{state}.get({text.key}, (0, 0))",
        f"if number + 1 == {every}:",
        f"    self.{state}[{text.key}] = (0, 0)",
        f'    self.out["{output}"].append(({text.key}, id, sum_ + amount))',
        "else:",
        f"    self.{state}[{text.key}] = (number + 1, sum_ + amount)",
    )


def deduplicate(text: Text, number: int) -> None:
    """Each id once within a minute."""
    output, seen, leaving = text.output(), f"seen_{number}", f"leaving_{number}"
    text.pipeline.append(
        f'stream.deduplicate(lambda e: e.id, within_ms=60_000, op_id="once-{number}")'
        ".map(lambda e: (e.id, e.amount))"
        f'.send_to(app.output("{output}"))'
    )
    text.keeps(seen, "set()")
    text.keeps(leaving, "deque()")
    text.does(
        f"if id not in self.{seen}:",
        f"    self.{seen}.add(id)",
        f"    self.{leaving}.append((at, id))",
        f'    self.out["{output}"].append((id, amount))',
    )
    text.fires += [
        f"while self.{leaving} and self.{leaving}[0][0] + 60_000 <= watermark:",
        f"    self.{seen}.discard(self.{leaving}.popleft()[1])",
    ]


def join(text: Text, number: int) -> None:
    """Events with the notes on their user around them."""
    output, before, after = text.output(), text.chance.randrange(200, 2_000), text.chance.randrange(0, 1_000)
    mine, theirs = f"events_{number}", f"notes_{number}"
    text.pipeline.append(
        f"stream.join(notes, lambda e, note: (e.id, e.amount, note.text), within=(-{before}, {after}), "
        f'op_id="join-{number}")'
        f'.send_to(app.output("{output}"))'
    )
    for name in (mine, theirs):
        text.keeps(name, "{}")
        text.keeps(f"leaving_{name}", "deque()")
    text.does(
        f"for when, about in self.{theirs}.get(user, ()):",
        f"    if -{before} <= when - at <= {after}:",
        f'        self.out["{output}"].append((id, amount, about))',
        f"self.{mine}.setdefault(user, deque()).append((at, id, amount))",
        f"self.leaving_{mine}.append((at, user))",
    )
    text.notes += [
        f"for when, id, amount in self.{mine}.get(note.user, ()):",
        f"    if -{before} <= note.at_ms - when <= {after}:",
        f'        self.out["{output}"].append((id, amount, note.text))',
        f"self.{theirs}.setdefault(note.user, deque()).append((note.at_ms, note.text))",
        f"self.leaving_{theirs}.append((note.at_ms, note.user))",
    ]
    for name, longest in ((mine, after), (theirs, before)):
        text.fires += [
            f"while self.leaving_{name} and self.leaving_{name}[0][0] + {longest} < watermark:",
            f"    _, user = self.leaving_{name}.popleft()",
            f"    waiting = self.{name}[user]",
            "    waiting.popleft()",
            "    if not waiting:",
            f"        del self.{name}[user]",
        ]


WINDOWS: tuple[Callable[[Text, int], None], ...] = (tumbling, tumbling, hopping, sessions)
IN_ORDER: tuple[Callable[[Text, int], None], ...] = (scan, process, deduplicate, join)
"""What wants the order of a key's events, or streams that are partitioned by the user."""
