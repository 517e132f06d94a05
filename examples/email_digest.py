"""E-mail digests: the job of Section 2.1 and Figure 1 in Samza's paper (VLDB 2017), with a length for each member."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from samza_dsl import App, Pane, collect, daily, duration_ms, testing, tumbling, windows_by

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


class Update(Struct, frozen=True):
    """Something that a member may want to know."""

    at_ms: int
    member: str
    text: str


class Settings(Struct, frozen=True):
    """How a member wants digests: every so many hours, or one for each day where the member lives."""

    member: str
    hours: int | None = None
    zone: str = "UTC"


class Email(Struct, frozen=True):
    """One digest."""

    id: str
    sent_ms: int
    member: str
    updates: list[str]


class Opened(Struct, frozen=True):
    """A member has opened a digest."""

    at_ms: int
    email: str


class Effect(Struct, frozen=True):
    """How long it took until a digest was opened, None where it was not within two days."""

    email: str
    after_ms: int | None


def windows_for(settings: Settings | None):
    """Choose a member's windows; who has said nothing gets a digest a day."""
    if settings is None or settings.hours is None:
        return daily(settings.zone if settings else "UTC")
    return tumbling(hours=settings.hours)


def written(digest: Pane[str, list[Update]]) -> Email:
    texts = [update.text for update in sorted(digest.value, key=lambda update: update.at_ms)]
    return Email(f"{digest.key}-{digest.end}", digest.end, digest.key, texts)


def effect(email: Email, opened: Opened | None) -> Effect:
    return Effect(email.id, opened.at_ms - email.sent_ms if opened else None)


app = App("email-digest")
updates = app.input("updates", value=Update, timestamp=lambda update: update.at_ms)
settings = app.table("settings", key=str, value=Settings)
opened = app.input("opened", value=Opened, timestamp=lambda opened: opened.at_ms)

emails = (
    updates.partition_by(lambda update: update.member, value=Update, op_id="by-member")
    .window(windows_by(settings, windows_for), collect(), op_id="digests")
    .map(written)
)
emails.send_to(app.output("emails", value=Email))
(
    emails.partition_by(lambda email: email.id, value=Email, op_id="sent")
    .join(
        opened.partition_by(lambda opened: opened.email, value=Opened, op_id="opened-by-email"),
        effect,
        within=(0, duration_ms(days=2)),
        how="left",
        op_id="effects",
    )
    .send_to(app.output("effects", value=Effect))
)


def generated(days: int = 2, seed: int = 0) -> Iterator[Update]:
    """Yield an update about every ten minutes, for one of four members."""
    chance = random.Random(seed)
    for number in range(days * 144):
        at_ms = number * DAY_MS // 144 + chance.randrange(1_000)
        yield Update(at_ms, chance.choice(("ann", "bob", "cyd", "dee")), f"news {number}")


SETTINGS = [Settings("ann", hours=4), Settings("bob", hours=12), Settings("cyd", zone="Asia/Tokyo")]
OPENED = [Opened(9 * HOUR_MS, f"ann-{4 * HOUR_MS}"), Opened(DAY_MS, f"bob-{12 * HOUR_MS}")]


def given() -> dict[str, list]:
    rows = [testing.Record(one, one.member, 0) for one in SETTINGS]
    return {"updates": [*generated()], "settings": rows, "opened": OPENED}


if __name__ == "__main__":
    results = testing.run(app, given())
    opened_after = {one.email: one.after_ms for one in results["effects"]}
    for email in sorted(results["emails"], key=lambda email: (email.member, email.sent_ms)):
        after = opened_after[email.id]
        told = "not opened" if after is None else f"opened after {after // HOUR_MS} h"
        print(f"{email.member}, {email.sent_ms // HOUR_MS:>2} h: {len(email.updates):>2} updates, {told}")
