"""Every seeded bug is caught; and a bug that no longer fits the source says so."""

import pytest

from tests.bite.__main__ import ROOT, look_for, main
from tests.bite.bugs import BUGS
from tests.bite.seeded import Bug, Changed
from tests.scale import scale

LOOKED_FOR = scale(BUGS[:1], BUGS[12::12], BUGS)
"""In CI a twelfth of them, the first in the table's test; `python -m tests.bite` looks for all."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", LOOKED_FOR, ids=lambda bug: bug.name)
def test_a_seeded_bug_is_caught(bug):
    found = look_for(bug)
    assert found.caught, f"{bug.name}: {found.by} found nothing in {found.after}"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_fits_the_source(bug, tmp_path):
    path = tmp_path / bug.file
    path.parent.mkdir(parents=True)
    path.write_text((ROOT / bug.file).read_text())
    bug.seed(tmp_path)
    compile(path.read_text(), bug.file, "exec")
    with pytest.raises(Changed, match="wants it once"):
        Bug(bug.name, bug.file, bug.old + "# nowhere", "").seed(tmp_path)


@pytest.mark.ci
def test_the_table_shows_what_catches_what(capsys):
    assert main([BUGS[0].name]) == 0
    told = capsys.readouterr().out
    assert BUGS[0].name in told
    assert "simulation, crashes: " in told
    assert told.endswith("1 bugs, 0 missed\n")
