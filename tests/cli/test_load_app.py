"""Which application a file or module has, and whose modules are imported where the user's have our names."""

import os
import sys

import pytest

from planner.model.function_names import label_of
from samza_dsl.application.loading import CantLoad, load_app

APP = """
    from samza_dsl import App
    app = App("one")
"""


def test_the_one_application_of_a_file_is_found(write):
    write("single.py", APP)
    assert load_app("single.py").name == "one"


def test_a_program_that_is_written_again_within_the_second_is_the_new_one(write, folder):
    write("twice.py", APP)
    os.utime("twice.py", (1, 1))
    assert load_app("twice.py").name == "one"
    write("twice.py", APP.replace("one", "two"))
    os.utime("twice.py", (1, 1))
    assert load_app("twice.py").name == "two"


def test_a_program_that_was_changed_is_told_by_the_lines_of_now(write):
    for body in ("word.upper()", "len(word)"):
        write("changed.py", f"{APP}    shout = lambda word: {body}\n")
        load_app("changed.py")
        assert label_of(sys.modules["changed"].shout) == body


def test_a_second_name_for_the_same_application_is_no_second_application(write):
    write("aliased.py", APP + "    again = app\n")
    assert load_app("aliased.py").name == "one"


def test_of_several_applications_one_must_be_named(write):
    write("several.py", APP + '    other = App("two")\n')
    with pytest.raises(CantLoad, match=r"has 2 applications: say which, several.py:app, several.py:other"):
        load_app("several.py")
    assert load_app("several.py:other").name == "two"
    assert load_app("several.py", "app").name == "one"


def test_a_name_that_is_no_application_is_refused_with_those_that_are(write):
    write("misnamed.py", APP)
    with pytest.raises(CantLoad, match=r"no application named 'App'; it has misnamed.py:app"):
        load_app("misnamed.py:App")


def test_a_file_without_an_application_says_how_to_write_one(write):
    write("empty.py", "")
    with pytest.raises(CantLoad, match=r'write app = App\("name"\)'):
        load_app("empty.py")


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("missing.py", "missing.py does not exist"),
        ("no such thing", "there is no file no such thing"),
        ("no_such_module", "there is no file and no module no_such_module"),
        ("samza_dsl.no_such", "there is no file and no module samza_dsl.no_such"),
        (".", "is a directory"),
        ("notes.txt", "is no Python file"),
    ],
)
def test_what_is_no_application_is_refused(write, target, wrong):
    write("notes.txt", "")
    with pytest.raises(CantLoad, match=wrong):
        load_app(target)


def test_an_application_in_a_module_of_a_package_is_found(write):
    write("shop/__init__.py", "")
    write("shop/model.py", "NAME = 'in a package'")
    write("shop/pipeline.py", "from samza_dsl import App\nfrom .model import NAME\napp = App('packaged')")
    assert load_app("shop.pipeline").name == "packaged"


def test_modules_beside_the_file_are_imported(write):
    write("elsewhere/beside_it.py", "NAME = 'sibling'")
    write("elsewhere/importing.py", "from samza_dsl import App\nfrom beside_it import NAME\napp = App(NAME)")
    assert load_app("elsewhere/importing.py").name == "sibling"


def test_classes_of_the_file_are_found_by_its_stem(write):
    write("stable_name.py", APP + "    class Order: pass\n")
    load_app("stable_name.py")
    assert sys.modules["stable_name"].Order.__module__ == "stable_name"


def test_a_file_that_fails_leaves_no_half_made_module(write):
    write("failing.py", "raise ValueError('not today')")
    with pytest.raises(ValueError, match="not today"):
        load_app("failing.py")
    assert "failing" not in sys.modules


@pytest.mark.parametrize("name", ["json.py", "runtime.py", "pytest.py"])
def test_a_file_named_like_a_loaded_module_is_refused(write, name):
    write(name, APP)
    with pytest.raises(CantLoad, match="which Python already has: rename the file"):
        load_app(name)


CLASHES = {
    "package": ("runtime/__init__.py", "import runtime"),
    "submodule": ("operators/mine.py", "from operators.mine import thing"),
    "module": ("planner.py", "from planner import thing"),
    "inside a function": ("runtime/__init__.py", "def later():\n    import runtime.speed"),
}


@pytest.mark.parametrize(("theirs", "line"), CLASHES.values(), ids=CLASHES)
def test_importing_a_module_named_like_ours_is_refused(write, theirs, line):
    write(theirs, "thing = 1")
    write("clashing.py", line)
    name = theirs.partition("/")[0].removesuffix(".py")
    with pytest.raises(CantLoad, match=rf"clashing.py:\d imports '{name}', and there are two: your .*{name}") as error:
        load_app("clashing.py")
    assert f"from mypackage.{name} import" in str(error.value)


def test_importing_it_further_down_is_refused_as_well(write):
    write("runtime/__init__.py", "")
    write("shop/__init__.py", "")
    write("shop/model.py", "import runtime")
    write("between.py", "from shop import model")
    write("indirect.py", "import between")
    with pytest.raises(CantLoad, match=r"shop/model.py:1 imports 'runtime'"):
        load_app("indirect.py")


def test_modules_named_like_ours_that_nobody_imports_do_no_harm(write):
    write("runtime/__init__.py", "raise AssertionError('shadows ours')")
    write("harmless.py", APP + "    import json\n")
    assert load_app("harmless.py").name == "one"


def test_modules_named_like_ours_inside_a_package_are_the_users(write):
    write("stall/__init__.py", "")
    write("stall/runtime.py", "NAME = 'mine'")
    write("stall/relative.py", "from . import runtime\nfrom .runtime import NAME")
    write("runtime/__init__.py", "")
    write("qualified.py", "from samza_dsl import App\nfrom stall.relative import NAME\napp = App(NAME)")
    assert load_app("qualified.py").name == "mine"


def test_importing_ours_is_no_clash(write):
    write("runtime/data.csv", "")
    write(
        "using_ours.py",
        APP + "    from runtime.model.errors import SamzaError\n    from operators.core.base import Batch\n",
    )
    assert load_app("using_ours.py").name == "one"
