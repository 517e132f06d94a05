"""Profile enrichment: the job for which Samza's high-level API became asynchronous, over a service of profiles."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence

from msgspec import Struct

from samza_dsl import App, Context, Pane, count, remote_table, retry, testing, tumbling


class View(Struct, frozen=True):
    """Someone has looked at a page."""

    at_ms: int
    member: int
    page: str


class Profile(Struct, frozen=True):
    """What the service knows of a member."""

    country: str
    company: str


class EnrichedView(Struct, frozen=True):
    """A view, with who it was."""

    view: View
    country: str


class ProfileService:
    """Stands for a service in the network: it answers for many members at once, some time later, if it answers."""

    def __init__(self, failing: float = 0.05) -> None:
        self.failing = failing

    async def open(self, context: Context) -> None:
        """Connect; each task has a client of its own."""
        self.context = context
        self.chance = random.Random(context.task)

    async def close(self) -> None:
        """Hang up."""

    async def __call__(self, members: Sequence[int]) -> dict[int, Profile]:
        """Return the profiles of members; one in ten has none."""
        await asyncio.sleep(self.chance.uniform(0.005, 0.05))
        self.context.count("members asked for", len(members))
        if self.chance.random() < self.failing:
            raise ConnectionError("the service is busy")
        return {member: profile_of(member) for member in members if member % 10}


def profile_of(member: int) -> Profile:
    """Return a profile that was never written down."""
    return Profile(("France", "India", "Peru")[member % 3], f"Company {member % 7}")


def enriched(view: View, profile: Profile | None) -> EnrichedView:
    """Add what is known of the member."""
    return EnrichedView(view, profile.country if profile else "unknown")


app = App("profile-enrichment")
views = app.input("page-views", value=View, timestamp=lambda view: view.at_ms)
profiles = remote_table(ProfileService(), batch_size=50, ttl_ms=60_000, fetches_per_second=100)
enriched_views = views.join(
    profiles, enriched, on=lambda view: view.member, how="left", on_error=retry(3, backoff_ms=50), op_id="profiles"
)
enriched_views.send_to(app.output("enriched-views", value=EnrichedView))
(
    enriched_views.partition_by(lambda enriched: enriched.country, op_id="by-country")
    .window(tumbling(seconds=10), count())
    .send_to(app.output("views-by-country", value=Pane[str, int]))
)


def generated(seconds: int = 60, seed: int = 0) -> Iterator[View]:
    """Yield a hundred views per second, most of them of few members."""
    chance = random.Random(seed)
    for at_ms in range(0, seconds * 1_000, 10):
        yield View(at_ms, int(chance.paretovariate(0.8)) % 1_000, chance.choice(("jobs", "feed", "people")))


if __name__ == "__main__":
    for pane in testing.run(app, {"page-views": list(generated())})["views-by-country"]:
        print(f"{pane.start // 1_000:>3} s to {pane.end // 1_000} s: {pane.value:>4} from {pane.key}")
