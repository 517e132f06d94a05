"""An application without what is not final in its results."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from operators.base import Spec
from operators.window import Window
from samza_dsl.app import App


def without_early(app: App) -> App:
    """Return the application with windows that have no early panes, and else as it is.

    >>> from samza_dsl import after_count, count, tumbling
    >>> app = App("counts")
    >>> numbers = app.input("numbers", value=int, key=str, timestamp=lambda n: n)
    >>> counts = numbers.window(tumbling(seconds=1), count(), early=after_count(1), op_id="counts")
    >>> counts.map(lambda pane: pane.timing).send_to(app.output("counted", value=str))
    >>> from samza_dsl import testing
    >>> given = {"numbers": [("a", 1), ("a", 2)]}
    >>> [testing.run(one, given)["counted"] for one in (app, without_early(app))]
    [['early', 'early', 'on_time'], ['on_time']]
    """
    if not any(isinstance(spec, Window) and spec.early for spec in app.graph().specs.values()):
        return app
    final = copy(app)
    final._specs = {}
    for id, spec in app.graph().specs.items():
        parents = tuple(final._specs[parent.op_id or ""] for parent in spec.parents)
        changed: Spec = replace(spec, parents=parents)
        if isinstance(changed, Window):
            changed = replace(changed, early=None)
        final._specs[id] = changed
    return final
