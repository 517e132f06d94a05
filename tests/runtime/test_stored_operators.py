"""What the version before the redesign of the code stored for every operator is gone on from."""

import tarfile
from pathlib import Path

from tests.runtime.stored_operators import TRIPS, begin, go_on

STORED = Path(__file__).parent / "stored_operators.tar.gz"


def test_every_operator_goes_on_from_what_the_version_before_stored(tmp_path):
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path / "before", filter="data")
    begin(tmp_path / "now")
    before = go_on(tmp_path / "before", TRIPS[20:])
    assert len({line.partition(":")[0] for line in before}) == 12
    assert before == go_on(tmp_path / "now", TRIPS[20:])
