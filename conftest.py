"""The two names that examples in docstrings begin with: an application, and how it is run."""

from __future__ import annotations

from typing import Any

import pytest


def example(key: Any = None) -> tuple[Any, Any]:
    """Make the application that reads the numbers 0 to 3, and return it with their stream."""
    from samza_dsl import App

    app = App("example")
    return app, app.input("numbers", value=int, key=key, timestamp=lambda n: n)


def shown(app: Any, stream: Any = None, **tables: Any) -> Any:
    """Run an example in memory and return what `stream` came to."""
    from samza_dsl.testing import run

    if stream is not None:
        stream.send_to(app.output("result"))
    results = run(app, {"numbers": [0, 1, 2, 3], **tables})
    return results["result"] if stream is not None else None


@pytest.fixture(autouse=True)
def names_of_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    """Let the docstrings of `samza_dsl` use these names without an import, so that no product file imports the kit.

    Only theirs: other modules have names of their own, which the namespace would hide.
    """
    if (request.config.rootpath / "samza_dsl") in request.path.parents:
        doctest_namespace.update(example=example, shown=shown)
    else:
        doctest_namespace.clear()


@pytest.fixture(autouse=True)
def no_place() -> None:
    """Let commands that errors advise be about nothing that a test before has opened."""
    from runtime.model.errors import PLACE

    PLACE.set("")
