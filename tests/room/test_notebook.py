"""A run in a notebook: its picture has rates, is kept up until the end, and names are no markup."""

import asyncio
import sys
from types import SimpleNamespace

import nbformat
import pytest
from nbclient import NotebookClient

from samza_dsl import App, SamzaError, produce
from samza_dsl.room import notebook

CELL = """
import asyncio
from samza_dsl import App
app = App("doubling")
app.input("numbers", value=int).map(lambda n: 2 * n, op_id="double").send_to(app.output("doubles", value=int))
async with app.running("data") as run:
    run.show()
    for n in range(20):
        await run.send("numbers", n)
    await run.settled()
    await asyncio.sleep(1.2)
await asyncio.sleep(1.2)
"""


@pytest.mark.ci
def test_a_real_notebook_keeps_the_picture_up_until_the_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(book, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = [one for one in book.cells[0].outputs if one.output_type == "display_data"]
    html, text = shown.data["text/html"], shown.data["text/plain"]
    assert "<svg" in html and "doubling was stopped" in text and "/s" in html and "<script" not in html


class Handle:
    def __init__(self, first):
        self.shown, self.has_three = [first], asyncio.Event()

    def update(self, picture):
        self.shown.append(picture)
        if len(self.shown) == 3:
            self.has_three.set()


@pytest.fixture
def handles(monkeypatch):
    found = []

    def display(picture, display_id):
        found.append(Handle(picture))
        return found[-1]

    module = SimpleNamespace(display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=module))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(notebook, "LOOK_MS", 5.0)
    return found


def doubling():
    app = App("doubling")
    app.input("numbers", value=int).map(lambda n: 2 * n, op_id="double").send_to(app.output("doubles", value=int))
    return app


def test_a_picture_is_kept_up_and_ends_with_the_run(tmp_path, handles):
    async def watched():
        async with doubling().running(tmp_path) as run:
            run.show()
            await run.send("numbers", 1)
            await run.settled()
            await handles[0].has_three.wait()
        await asyncio.wait(notebook._KEPT)

    asyncio.run(watched())
    told = [one._repr_mimebundle_() for one in handles[0].shown]
    assert "doubling runs" in told[0]["text/plain"] and "doubling was stopped" in told[-1]["text/plain"]
    assert all("<svg" in one["text/html"] and "<script" not in one["text/html"] for one in told)


def test_a_run_that_is_over_is_shown_once(tmp_path, handles):
    produce("numbers", [1, 2], value=int, data=tmp_path)
    run = doubling().run(tmp_path, until_now=True)
    run.show()
    (shown,) = handles[0].shown
    assert "doubling has ended" in shown._repr_mimebundle_()["text/plain"] and not notebook._KEPT


def test_outside_of_a_notebook_it_says_what_to_write_instead(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    run = doubling().run(tmp_path, until_now=True)
    with pytest.raises(SamzaError, match=r"app.run\(live=True\)"):
        run.show()
