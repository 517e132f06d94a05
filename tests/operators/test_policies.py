"""Error policies: what they come to in the end, and how long a call may take under them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.core.policies import DeadLetterPolicy, Retry, dead_letter, fail, final, retry, skip, worst_case_ms

last = st.sampled_from([fail, skip, dead_letter("letters")])


@given(last, st.integers(1, 9), st.integers(0, 1_000))
def test_a_retry_comes_to_what_follows_it(then, times, backoff):
    assert final(retry(times, backoff_ms=backoff, then=then)) == then == final(then)


@given(st.integers(1, 8), st.integers(0, 1_000), st.integers(1, 10_000))
def test_the_worst_case_is_that_every_try_times_out_and_every_backoff_is_waited(times, backoff, timeout):
    waited, pause = timeout, backoff
    for _ in range(times):
        waited += pause + timeout
        pause *= 2
    assert worst_case_ms(retry(times, backoff_ms=backoff), timeout) == waited


@given(last, st.integers(1, 10_000))
def test_without_retries_the_worst_case_is_the_timeout(policy, timeout):
    assert worst_case_ms(policy, timeout) == timeout


@pytest.mark.parametrize(("times", "backoff"), [(0, 0), (-1, 0), (1, -1)])
def test_a_retry_that_is_none_is_refused(times, backoff):
    with pytest.raises(ValueError, match="retry"):
        retry(times, backoff_ms=backoff)


def test_policies_are_values():
    assert retry(2) == Retry(2, 0, fail) and dead_letter("a") == DeadLetterPolicy("a") != dead_letter("b")
