"""The classes of specs that the product has, for tests that nothing of one is forgotten."""

import importlib

from operators.core.base import Spec
from tests.source import ROOT, python_files


def specs() -> list[type[Spec]]:
    """Return every class of specs, without those that tests have made, and what several kinds only share."""
    for file in python_files("operators"):
        importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    return [kind for kind in _below(Spec) if kind.__module__.startswith("operators.") and hasattr(kind, "kind")]


def _below(kind: type[Spec]) -> list[type[Spec]]:
    return [one for child in kind.__subclasses__() for one in (child, *_below(child))]
