"""Each row of the page on evolution holds, on the log and on Kafka: what a change means, and what is typed."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "evolution.md"
PROGRAM = """
    from msgspec import Struct
    from samza_dsl import App, total, tumbling

    {classes}
    app = App("P-shop")
    sales = app.input("P-sales", value=dict, timestamp=lambda r: r["at"])
    {handed}
    {operators}
"""
BY = 'by = sales.partition_by(lambda r: r["shop"], partitions=2, op_id="by")'
COUNTS = (
    'by.scan(lambda n, r: n + 1, init=int, op_id="counts", emit=lambda k, n: [k, n]).send_to(app.output("P-counts"))'
)
OTHER = COUNTS.replace("counts", "numbers")
SUMS = 'by.window(tumbling(seconds=2), total(lambda r: r["at"]), op_id="sums").send_to(app.output("P-sums"))'
SALE = "class Sale(Struct):\n        shop: str\n        at: {}\n"
LAST = (
    'by.map(lambda r: Sale(r["shop"], {}), op_id="sale").scan(lambda last, sale: sale, init=lambda: None, '
    'op_id="last", emit=lambda k, sale: [k, sale.at]).send_to(app.output("P-last"))'
)


def program(*operators, classes="", handed=BY):
    return PROGRAM.format(classes=classes, handed=handed, operators="\n    ".join(operators))


@dataclass
class World:
    """A place in which commands are called, with the names of one test."""

    call: object
    write: object
    where: tuple
    prefix: str

    def be(self, text):
        self.write("app.py", text.replace("P-", f"{self.prefix}-"))

    def type(self, words, stdin=None, is_refused=False):
        found = self.call(*words.split(), *self.where, stdin=stdin)
        assert (found.exit_code != 0) == is_refused, found.output + found.stderr
        return (found.stdout + found.stderr if is_refused else found.stdout).replace(f"{self.prefix}-", "")

    def run(self, is_refused=False):
        return self.type("run app.py --until-now", is_refused=is_refused)

    def sell(self, *sales):
        lines = "".join(json.dumps({"shop": shop, "at": at}) + "\n" for shop, at in sales)
        self.type(f"streams produce {self.prefix}-sales", stdin=lines)

    def begin(self, text):
        """Run a program over three sales, two of which are of one shop."""
        self.be(text)
        self.sell(("a", 500), ("b", 1_000), ("a", 3_500))
        self.run()

    def go_on(self, *sales):
        self.sell(*(sales or [("a", 4_000)]))
        self.run()

    def newest(self, stream):
        said = self.type(f"streams tail {self.prefix}-{stream} -n 1")
        return json.loads(said.splitlines()[-1].split()[-1])


def without_state(world):
    world.begin(program(COUNTS))
    world.be(program(COUNTS.replace(".send_to", ".map(lambda pair: [*pair, 0]).send_to")))
    world.go_on()
    assert world.newest("counts") == ["a", 3, 0]


def new(world):
    world.begin(program(COUNTS))
    world.be(program(COUNTS, OTHER))
    world.type("evolve app.py --apply --yes")
    world.go_on()
    assert world.newest("numbers") == ["a", 3]


def renamed(world):
    world.begin(program(COUNTS))
    world.be(program(OTHER))
    assert "state move" in world.run(is_refused=True)
    world.type("state move app.py counts numbers")
    world.go_on()
    assert world.newest("numbers") == ["a", 3]


def removed(world):
    world.begin(program(COUNTS, OTHER))
    world.be(program(COUNTS))
    assert "state forget" in world.run(is_refused=True)
    world.type("state forget app.py numbers --yes")
    world.go_on()
    assert world.newest("counts") == ["a", 3]


def means_something_else(world):
    world.begin(program(SUMS, COUNTS))
    world.be(program(SUMS.replace("seconds=2", "seconds=5"), COUNTS))
    world.run(is_refused=True)
    world.type("evolve app.py --apply --yes")
    world.go_on(("a", 4_000), ("a", 6_000), ("b", 6_000))
    panes = [
        json.loads(line.split()[-1]) for line in world.type(f"streams tail {world.prefix}-sums -n 2").splitlines()[1:]
    ]
    assert {pane["key"]: pane["value"] for pane in panes} == {"a": 8_000, "b": 1_000}


def a_function(world):
    world.begin(program(COUNTS))
    world.be(program(COUNTS.replace("n + 1", "n + 10")))
    world.type("evolve app.py --apply --yes --again counts")
    world.go_on()
    assert world.newest("counts") == ["a", 30]


def fields_with_defaults(world):
    world.begin(program(LAST.format('r["at"]'), classes=SALE.format("int")))
    more = SALE.format("float") + "        tip: int = 3\n"
    world.be(
        program(
            LAST.format('r["at"]').replace("lambda last, sale: sale", "lambda last, sale: last or sale"), classes=more
        )
    )
    world.go_on()
    assert world.newest("last") == ["a", 3500.0]


def fields_otherwise(world):
    world.begin(program(LAST.format('str(r["at"])'), classes=SALE.format("str")))
    kept = LAST.format('r["at"]').replace("lambda last, sale: sale", "lambda last, sale: last or sale")
    world.be(program(kept, classes=SALE.format("int")))
    assert "what it keeps can't be read" in world.type("evolve app.py", is_refused=True)
    world.sell(("a", 4_000))
    assert "at" in world.run(is_refused=True)
    both = SALE.format("str") + "\n    " + SALE.format("int").replace("Sale", "Sold")
    world.be(program(kept.replace("Sale(", "Sold("), classes=both))
    world.write(
        "conversions.py",
        "import app\n\n\ndef sold(entry):\n    return entry.of(app.Sold(entry.value.shop, int(entry.value.at)))\n",
    )
    world.type("state convert app.py last conversions:sold --yes")
    world.run()
    assert world.newest("last") == ["a", 3500]


def fields_computed_anew(world):
    """Compute from history what the classes of now can't read."""
    world.begin(program(LAST.format('str(r["at"])'), classes=SALE.format("str")))
    world.be(program(LAST.format('r["at"]'), classes=SALE.format("int")))
    world.type("evolve app.py --apply --yes")
    assert "evolve" not in world.type("evolve app.py")
    world.go_on(("b", 4_000))
    assert world.newest("last") == ["b", 4_000]
    assert '"at":3500' in world.type("state get app.py last a")


def partitions(world):
    world.begin(program(COUNTS))
    world.be(program(COUNTS, handed=BY.replace("=2", "=3")))
    world.go_on()
    assert world.newest("counts") == ["a", 3]


def handed_on(world):
    world.begin(program(COUNTS))
    world.sell(("b", 4_000))
    world.type("drain app.py")
    other = 'by = sales.map(lambda r: (r["shop"], r["at"])).partition_by(lambda r: r[0], partitions=2, op_id="by")'
    world.be(program(COUNTS, handed=other))
    world.go_on()
    assert world.newest("counts") == ["a", 3]


def a_wrong_value(world):
    world.begin(program(COUNTS))
    exported = world.type("state export app.py counts")
    world.type("state import app.py --yes", stdin=exported.replace('"value":2', '"value":7'))
    world.go_on()
    assert world.newest("counts") == ["a", 8]


ROWS = {
    "an operator without state is added": without_state,
    "an operator with state is new": new,
    "an operator with state is renamed": renamed,
    "an operator with state is removed": removed,
    "state means something else": means_something_else,
    "a function changed": a_function,
    "fields of a class are added with a default": fields_with_defaults,
    "fields of a class change in another way": fields_computed_anew,
    "such fields, and history is gone": fields_otherwise,
    "a `partition_by` has another number of partitions": partitions,
    "what is handed on between stages changes": handed_on,
    "a wrong value was computed": a_wrong_value,
}
"""By how a row begins, what tries it."""


def test_each_row_is_tried():
    _, _, table = PAGE.read_text().partition("\n## What may change\n")
    changes = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(changes) == len(ROWS)
    for change, begins in zip(changes, ROWS, strict=True):
        assert change.startswith(begins)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_holds_on_the_log(row, call, write):
    ROWS[row](World(call, write, (), "p"))


@pytest.mark.ci
@pytest.mark.parametrize("row", ROWS)
def test_a_row_holds_on_kafka(row, call, write, broker, topics):
    ROWS[row](World(call, write, ("--environment", f"kafka://{broker.bootstrap}"), topics))
