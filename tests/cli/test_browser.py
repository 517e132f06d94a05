"""The control room in a real browser against real runs: what is slow, what died, what was mended, and on a phone."""

import json
import os
import re
import shutil
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from playwright.sync_api import expect, sync_playwright

from runtime.watching.server import PageServer
from samza_dsl import App, dead_letter, produce
from samza_dsl.room.pages import ControlRoom
from samza_dsl.room.recorder import recorded
from samza_dsl.room.runs import Place
from tests.faults.processes import wait_until

pytestmark = pytest.mark.ci

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000
ORDERS = """
    import asyncio
    import time
    from samza_dsl import App, Options, dead_letter

    def check(order):
        if order["amount"] < 0:
            raise ValueError(f"an amount of {order['amount']} can't be paid")
        return order

    async def customer(order):
        await asyncio.sleep(0.002)
        return [order]

    def score(order):
        time.sleep(0.01)
        return order

    app = App("orders", Options(commit_interval_ms=500))
    orders = app.input("orders", value=dict, key=lambda order: str(order["n"]))
    known = orders.map(check, op_id="check", on_error=dead_letter("bad-orders"))
    scored = known.async_flat_map(customer, op_id="customer", max_in_flight=20).map(score, op_id="score")
    scored.send_to(app.output("scored", value=dict), op_id="write")
"""


@pytest.fixture(scope="module")
def chromium():
    """A headless Chromium of the system, whichever there is."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("there is no Chromium: scripts/system chromium-headless-shell=chromium-headless-shell installs one")
    with sync_playwright() as playwright:
        # As root, as in a container, it has no sandbox; it shows pages of this machine alone.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(chromium, url, **how):
    """Open a page, which may show no error and ask nobody else."""
    context = chromium.new_context(**how)
    page, asked, wrong = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    # What the policy of the page refuses is told there.
    page.on("console", lambda said: wrong.append(said.text) if "Security Policy" in said.text else None)
    page.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page.goto(url)
    yield page
    context.close()
    assert not wrong and all(one.startswith((url.partition("#")[0], "data:")) for one in asked)


@contextmanager
def fed(data):
    """Write orders as they come, of which one in some hundred is wrong, for a block."""
    done = threading.Event()

    def feed():
        n = 0
        while not done.wait(0.1):
            orders = [{"n": n + i, "amount": -5 if n + i == 70 else 5} for i in range(17)]
            produce("orders", orders, data=data, key=lambda order: str(order["n"]), partitions=4)
            n += len(orders)

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def containers_of(process):
    """Return the processes that a run has started."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
        return [int(one) for one in children.read().split()]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def listens(port):
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def test_a_real_run_is_watched_and_acted_on(chromium, program, write, folder):
    write("orders.py", ORDERS)
    port, data = free_port(), folder / ".samza-dsl"
    with ExitStack() as during:
        during.enter_context(fed(data))
        wait_until(lambda: (data / "data.mdb").exists())
        options = "--containers", "2", "--ui", "--ui-allow-actions", "--metrics", f":{port}"
        run = program("run", "orders.py", *options)
        wait_until(lambda: listens(port))
        page = during.enter_context(opened(chromium, f"http://127.0.0.1:{port}/"))

        # The slow operator is named first, with its line, and the picture shows it.
        expect(page.locator("#slow li").first).to_contain_text(re.compile(r"score \(orders.py:\d+\) takes \d+%"))
        expect(page.locator("#picture .card.much, #picture .card .heat[width]").first).to_be_attached()
        expect(page.locator("#picture .rate text").first).to_have_text(re.compile(r"[1-9][\d.]*k?/s"))
        expect(page.locator("#state")).to_have_text("runs")

        # The dead letter is mended, and sent again.
        letter = page.locator(".letter")
        expect(letter).to_contain_text("ValueError: an amount of -5 can't be paid")
        letter.locator("summary").click()
        value = letter.locator("textarea")
        value.fill(json.dumps({**json.loads(value.input_value()), "amount": 7}))
        letter.get_by_role("button", name="Send again").click()
        expect(page.locator(".letter.sent")).to_contain_text("sent again at")
        expect(page.locator("#events")).to_contain_text("was mended and sent again, to orders/")

        # A container that is killed turns red, and comes back.
        expect(page.locator(".box .tasks b")).to_have_count(4)
        os.kill(containers_of(run)[0], signal.SIGKILL)
        expect(page.locator(".box.bad")).to_have_count(1)
        expect(page.locator(".box.bad")).to_contain_text("was killed by SIGKILL")
        expect(page.locator(".box.bad")).to_have_count(0)
        expect(page.locator(".box .tasks b")).to_have_count(4)
        expect(page.locator("#containers")).to_contain_text("died 1 time, the last one was killed by SIGKILL")
        expect(page.locator("#events")).to_contain_text("takes the place of")

        # Another container comes, and has a share of the tasks.
        page.locator("summary", has_text="Scale").click()
        page.get_by_label("Containers").fill("3")
        page.get_by_role("button", name="Scale", exact=True).click()
        page.get_by_role("button", name="Really scale?").click()
        expect(page.locator("#said")).to_contain_text("is asked to have another size: 3 containers")
        expect(page.locator(".box:has(.tasks b)")).to_have_count(3)
        expect(page.locator(".box .tasks b")).to_have_count(4)
        assert len(containers_of(run)) == 3
        page.locator("[data-key=sizes] summary").click()
        expect(page.locator("[data-key=sizes] tbody")).to_contain_text("2 → 3")
        page.locator("[data-key=checkpoints] summary").click()
        expect(page.locator("[data-key=checkpoints] tbody")).to_contain_text("orders")

        page.get_by_role("button", name="Commit now").click()
        expect(page.locator("#said")).to_have_text("orders is asked to commit")
        page.get_by_role("button", name="Stop").click()
        page.get_by_role("button", name="Really stop?").click()
        assert run.wait(60) == 0
    assert '"amount":7' in read_all(program, "scored").replace(" ", "")


def read_all(program, stream):
    said, _ = program("streams", "show", stream, "--limit", "100000").communicate(timeout=60)
    return said


def third(n):
    return 3 // n


def run_noted(app, data, where):
    """Run an application that notes itself, to its end; Playwright's event loop runs in the test's own thread."""

    def run():
        with recorded(data, app.name, where) as recorder:
            app.run(data, watch=recorder.watch, until_now=True)
            recorder.note("warning", where, (where,))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()


def noted(data, name, numbers, fails=False):
    """Run an application that notes itself, to its end."""
    app = App(name)
    policy = {} if fails else {"on_error": dead_letter(f"{name}-bad")}
    app.input(f"{name}-in", value=int).map(third, op_id="third", **policy).send_to(app.output(f"{name}-out", value=int))
    produce(f"{name}-in", numbers, value=int, data=data)
    run_noted(app, data, str(data))


@contextmanager
def shown(*data, token=None):
    room = ControlRoom([*map(Place, data)])
    server = PageServer("127.0.0.1", 0, room.pages, token)
    server.start()
    yield f"http://127.0.0.1:{server.port}/"
    server.close()
    room.close()


def test_several_runs_are_on_one_page_and_names_are_no_markup(chromium, tmp_path):
    evil = "<img src=x onerror='window.evil=1'><script>window.evil=1</script>"

    def raising(n):
        raise ValueError(evil)

    app = App("hostile")
    app.input("in", value=str).map(raising, op_id="third", on_error=dead_letter("bad")).send_to(app.output("out"))
    produce("in", [evil], value=str, data=tmp_path / "a")
    run_noted(app, tmp_path / "a", evil)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        noted(tmp_path / "b", "failing", [1, 0], fails=True)
    with shown(tmp_path / "a", tmp_path / "b") as url, opened(chromium, url) as page:
        expect(page.locator("#runs a")).to_have_count(2)
        page.locator("#runs a", has_text="hostile").click()
        expect(page.locator(".letter")).to_contain_text("<img src=x")
        expect(page.locator("#events")).to_contain_text("<script>")
        assert page.evaluate("window.evil") is None and page.locator("main img, main script").count() == 0
        page.locator("#runs a", has_text="failing").click()
        expect(page.locator("#state")).to_have_text("has failed")
        expect(page.locator("#alerts .bad")).to_contain_text("test_browser.py")
        expect(page.locator("#alerts .bad")).to_contain_text("return 3 // n")
        assert page.get_by_role("button", name="Stop").count() == 0, "the page is only read"


def test_a_phone_shows_all_of_it_for_the_token(chromium, tmp_path):
    noted(tmp_path, "thirds", [1, 0, 3])
    token = "0123456789abcdef"
    how = {"viewport": {"width": 375, "height": 740}, "http_credentials": {"username": "me", "password": token}}
    with shown(tmp_path, token=token) as url:
        with opened(chromium, url, **how) as page:
            expect(page.locator("#picture svg")).to_be_visible()
            expect(page.locator(".letter")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= 375, "nothing is wider than the phone"
        how["http_credentials"] = {"username": "me", "password": f"{token}x"}
        with opened(chromium, url, **how) as page:
            expect(page.locator("body")).to_contain_text("a token is asked for")
