"""A short run of the chaos command."""

import pytest

from tests.chaos.kafka import trial
from tests.scale import scale


@pytest.mark.ci
def test_containers_on_a_real_broker_count_each_record_once_whatever_happens(tmp_path):
    chaos = trial(tmp_path, scale(0.5, 1.0, 3), seed=7)
    assert len(chaos.struck) > 2, "several kinds of what can happen did"
