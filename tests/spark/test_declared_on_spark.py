"""What only a declared serde can store goes through a run on Spark as through a live one."""

import json

from samza_dsl import App, Spark, StateTypes
from tests.amounts import Amount, Cents


def listed(amount, context):
    amounts = context.list("all")
    amounts.append(amount)
    return [sum(one.cents for one in amounts)]


def app_of():
    app = App("declared")
    streams = [
        app.input(name, value=int, timestamp=lambda n: n).partition_by(lambda n: n % 3, partitions=2).map(Amount)
        for name in ("left", "right")
    ]
    left, right = streams
    joined = left.join(right, lambda a, b: [a.cents, b.cents], within=(-3, 3), state=(Cents(), Cents()))
    joined.send_to(app.output("joined"))
    left.process(listed, state=StateTypes(lists={"all": Cents()})).send_to(app.output("listed"))
    return app


def test_declared_serdes_go_to_the_workers(session, tmp_path):
    for name in ("left", "right"):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{n}\n" for n in range(40)))
    found = []
    for where, how in (("live", {}), ("spark", {"on": Spark(session)})):
        (tmp_path / where).mkdir()
        outs = {name: tmp_path / where / f"{name}.jsonl" for name in ("joined", "listed")}
        app_of().run(
            tmp_path / where / "data",
            bind={name: tmp_path / f"{name}.jsonl" for name in ("left", "right")} | outs,
            **how,
        )
        found.append({name: sorted(_lines(path)) for name, path in outs.items()})
    assert found[0] == found[1]
    assert len(found[0]["joined"]) > 40


def _lines(path):
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
