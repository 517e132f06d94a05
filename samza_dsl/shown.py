"""The application that the examples of the fluent stream begin with, and how they run it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samza_dsl.stream import MessageStream


def example(key: Any = None) -> tuple[Any, MessageStream[Any, int]]:
    """Make the application that reads the numbers 0 to 3."""
    from samza_dsl.app import App

    app = App("example")
    return app, app.input("numbers", value=int, key=key, timestamp=lambda n: n)


def shown(app: Any, stream: Any = None, **tables: Any) -> Any:
    """Run an example in memory and return what `stream` came to."""
    from samza_dsl.testing import run

    if stream is not None:
        stream.send_to(app.output("result"))
    results = run(app, {"numbers": [0, 1, 2, 3], **tables})
    return results["result"] if stream is not None else None
