"""The policies for a record on which a user's function raises: fail, skip, dead letter, or retry."""

from __future__ import annotations

from dataclasses import dataclass

from operators.core.durations import Duration, whole_ms
from operators.core.sites import mistake


@dataclass(frozen=True)
class Fail:
    """Stop the run with an error that names the operator; nothing of the record is committed.

    >>> retry(2, then=fail)
    Retry(times=2, backoff_ms=0, then=Fail())
    """


@dataclass(frozen=True)
class Skip:
    """Drop the record with all its effects, and count it.

    >>> retry(2, then=skip)
    Retry(times=2, backoff_ms=0, then=Skip())
    """


@dataclass(frozen=True)
class DeadLetterPolicy:
    """Write the original bytes, position and error to `stream`, in the commit that passes over the record."""

    stream: str


@dataclass(frozen=True)
class Retry:
    """Call again up to `times` times, waiting `backoff_ms`, twice that, and so on; then do as `then` says."""

    times: int
    backoff_ms: int
    then: Fail | Skip | DeadLetterPolicy


Policy = Fail | Skip | DeadLetterPolicy | Retry

fail = Fail()
skip = Skip()


def dead_letter(stream: str) -> DeadLetterPolicy:
    """Send records that fail to a stream of dead letters.

    A dead letter has the original key and value bytes; its headers say `stream`, `partition`, `offset`, `operator`
    and `error`. Below a `partition_by` these are of the stream between the stages; of what an operator emitted, such as
    a pane, `stream` is its id, and no offset is known. A message that is late at a window or a join is kept as it came
    there.

    >>> dead_letter("bad-flights")
    DeadLetterPolicy(stream='bad-flights')
    """
    return DeadLetterPolicy(stream)


def retry(times: int, backoff_ms: Duration = 0, then: Fail | Skip | DeadLetterPolicy = fail) -> Retry:
    """Try a failing record again before giving up on it.

    `backoff_ms` > 0 is for async operators only (or for runs with threads): elsewhere waiting would block the loop.
    Raises ValueError when `times` < 1 or `backoff_ms` < 0.

    >>> retry(3, backoff_ms=100, then=skip)
    Retry(times=3, backoff_ms=100, then=Skip())
    """
    backoff = whole_ms(backoff_ms)
    for name, number, least in (("times", times, 1), ("backoff_ms", backoff, 0)):
        if type(number) is not int or number < least:
            raise mistake(f"retry({name}={number!r}) is not a whole number of at least {least}", f"{name}=3")
    if not isinstance(then, Fail | Skip | DeadLetterPolicy):
        raise mistake(f"retry(then={then!r}) is no last resort", "then=fail, skip or dead_letter('name')")
    return Retry(times, backoff, then)


def final(policy: Policy) -> Fail | Skip | DeadLetterPolicy:
    """Return the policy that is left when all retries have failed.

    >>> final(retry(2, then=skip))
    Skip()
    """
    return policy.then if isinstance(policy, Retry) else policy


def worst_case_ms(policy: Policy, timeout_ms: int) -> int:
    """Return the ms that one async call may take under `policy`: every try times out, every backoff is waited.

    >>> worst_case_ms(retry(2, backoff_ms=100), timeout_ms=1_000)
    3300
    """
    if not isinstance(policy, Retry):
        return timeout_ms
    # The backoff doubles with each try, and 1 + 2 + 4 + … over `times` tries is 2**times - 1.
    backoffs_ms: int = policy.backoff_ms * (2**policy.times - 1)
    return timeout_ms * (policy.times + 1) + backoffs_ms
