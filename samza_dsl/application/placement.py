"""The placement of tasks: its names for users, and its reference that other processes resolve."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Literal

from runtime.model.assignment import Placement, round_robin, sticky
from runtime.model.errors import SamzaError

KINDS = {"sticky": sticky, "round_robin": round_robin}
Said = Literal["sticky", "round_robin"] | Placement


def named(placement: object) -> str:
    """Return the reference of a placement for other processes: its kind, or the module and name of a function.

    Raises SamzaError for what these could not find.

    >>> named("sticky")
    'sticky'
    """
    if isinstance(placement, str) and (placement in KINDS or ":" in placement):
        return placement
    name, module = getattr(placement, "__qualname__", ""), getattr(placement, "__module__", "")
    if not callable(placement) or not name.isidentifier():
        raise SamzaError(
            f'placement={placement!r} is none that other processes find; write placement="sticky", "round_robin", or '
            "a function at the top level of a module"
        )
    # A container is another program, and has another main module: it imports this one by the name of its file.
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", "") or "").stem
    return f"{module}:{name}"


def found(said: str) -> Placement:
    """Return the placement of a reference; raises SamzaError where there is none.

    >>> found("round_robin").__name__
    'round_robin'
    """
    if said in KINDS:
        return KINDS[said]
    module, _, name = said.partition(":")
    try:
        placement: Placement = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SamzaError(f"the placement {said} can't be found: {error}; write MODULE:FUNCTION") from error
    return placement
