"""E-mail digests, the paper's example, against a few lines that write them by hand."""

import subprocess
import sys

from samza_dsl import testing
from tests.flights.streams import EXAMPLES, example

HOUR_MS = 3_600_000
LENGTH = {"ann": 4 * HOUR_MS, "bob": 12 * HOUR_MS, "cyd": 24 * HOUR_MS, "dee": 24 * HOUR_MS}
OFFSET = {"cyd": 15 * HOUR_MS}
"""When a day begins in Tokyo, where the clocks never change."""


def by_hand(digest):
    """Return the texts of each e-mail, by its id."""
    emails = {}
    for update in digest.generated():
        length = LENGTH[update.member]
        end = update.at_ms + length - (update.at_ms - OFFSET.get(update.member, 0)) % length
        emails.setdefault(f"{update.member}-{end}", []).append(update.text)
    return emails


def test_each_member_gets_what_came_in_windows_as_long_as_the_settings_say():
    digest = example("email_digest")
    results = testing.run(digest.app, digest.given())
    assert {email.id: email.updates for email in results["emails"]} == by_hand(digest)
    assert all(email.id == f"{email.member}-{email.sent_ms}" for email in results["emails"])


def test_every_email_has_one_effect():
    digest = example("email_digest")
    effects = testing.run(digest.app, digest.given())["effects"]
    opened = {one.email: one.after_ms for one in effects if one.after_ms is not None}
    assert sorted(one.email for one in effects) == sorted(by_hand(digest))
    assert opened == {f"ann-{4 * HOUR_MS}": 5 * HOUR_MS, f"bob-{12 * HOUR_MS}": 12 * HOUR_MS}


def test_who_changes_the_settings_gets_the_next_updates_by_the_new_ones():
    digest = example("email_digest")
    with testing.running(digest.app) as run:
        run.send("settings", testing.Record(digest.Settings("ann", hours=4), "ann", 0))
        run.send("updates", digest.Update(HOUR_MS, "ann", "a"))
        run.send("settings", testing.Record(digest.Settings("ann", hours=2), "ann", 0))
        run.crash()
        run.restart()
        run.send("updates", digest.Update(HOUR_MS, "ann", "b"), digest.Update(5 * HOUR_MS, "bob", "c"))
        assert [(email.sent_ms // HOUR_MS, email.updates) for email in run.read("emails")] == [(2, ["b"]), (4, ["a"])]


def test_an_email_that_was_opened_too_late_was_not_opened():
    digest = example("email_digest")
    after = {"just in time": 48 * HOUR_MS, "too late": 48 * HOUR_MS + 1}
    for name, wait_ms in after.items():
        sent_ms = 24 * HOUR_MS
        given = {
            "settings": [],
            "updates": [digest.Update(0, "ann", name)],
            "opened": [digest.Opened(sent_ms - 1 + wait_ms, f"ann-{sent_ms}")],
        }
        (effect,) = testing.run(digest.app, given)["effects"]
        assert effect.after_ms == (wait_ms - 1 if name == "just in time" else None)


def test_as_a_program_it_prints_a_line_per_email():
    done = subprocess.run([sys.executable, EXAMPLES / "email_digest.py"], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == len(by_hand(example("email_digest")))
    assert done.stdout.startswith("ann,  4 h:  6 updates, opened after 5 h\n")
