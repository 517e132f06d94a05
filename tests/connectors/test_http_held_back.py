"""Who posts faster than the log takes is told to come again, and what was acknowledged is there."""

import asyncio
import json
import threading
from itertools import count

import pytest

from runtime.ports.commits import Commit
from runtime.systems.http import http_source as source_module
from runtime.systems.memory.environment import MemoryEnvironment
from samza_dsl import connectors
from tests.connectors.test_http import JSON, LINES, Ready, copying, posted
from tests.real_time import until


class HeldBack(MemoryEnvironment):
    """A log that takes nothing from an input until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begins, self.goes_on = threading.Event(), threading.Event()

    def commit(self, commit: Commit) -> None:
        if any(b'"id"' in value for append in commit.appends for value in append.batch.values if value):
            self.begins.set()
            assert self.goes_on.wait(60)
        super().commit(commit)


@pytest.mark.parametrize(("kind", "size"), [(JSON, 60_000), (LINES, 60_000), (LINES, 20)])
def test_who_posts_faster_than_the_log_takes_is_told_to_come_again(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MOST_HELD_BYTES", 400_000)
    environment, number = HeldBack(), count()

    def body() -> bytes:
        rows = [b'{"id":%d}' % next(number) for _ in range(1 if kind == JSON else 60_000 // size)]
        return b"\n".join(row.ljust(size - 1) for row in rows)

    async def main() -> tuple[list[tuple[int, str]], int]:
        ready = Ready()
        source = connectors.http_source(":0", on_ready=ready)
        async with copying().running(environment, bind={"orders": source}) as run:
            url = await ready.wait()
            posts = [asyncio.create_task(asyncio.to_thread(posted, url, body(), kind)) for _ in range(24)]
            await asyncio.to_thread(environment.begins.wait, 60)
            await until(lambda: sum(post.done() for post in posts) >= 21)
            assert {post.result()[0] for post in posts if post.done()} == {503}
            environment.goes_on.set()
            answers = await asyncio.gather(*posts)
            answers.append(await asyncio.to_thread(posted, url, body(), kind))
            await run.settled()
            return answers, len(run.received("copies"))

    answers, taken = asyncio.run(main())
    assert answers[-1][0] == 202 and {status for status, _ in answers} == {202, 503}
    assert taken == sum(json.loads(text)["records"] for status, text in answers if status == 202)
