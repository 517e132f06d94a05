"""A law over all commands and all of their flags that are settings: a file, a variable and a flag say the same."""

import inspect
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin

import pytest
import typer

from samza_dsl.cli.main import COMMANDS
from samza_dsl.cli.settings import OTHERS, config, declared, settling
from samza_dsl.settings.quantities import units_of
from samza_dsl.settings.sources import TABLE


def commands():
    for name, found in COMMANDS.items():
        command = getattr(import_module(f"samza_dsl.cli.{found.module}"), found.name)
        if isinstance(command, typer.Typer):
            for one in command.registered_commands:
                yield f"{name} {one.name or one.callback.__name__.replace('_', '-')}", one.callback
        else:
            yield name, command


FUNCTIONS = dict(commands())
EVERY = [
    (command, name)
    for command, function in FUNCTIONS.items()
    for name in inspect.signature(function).parameters
    if name in declared() and (command, name) not in OTHERS
]


def sample(setting):
    """Return a value of a setting as a variable and as a file say it, and as the command gets it."""
    kinds = (setting.kind, *get_args(setting.kind))
    if setting.kind is TABLE:
        return "a=b.jsonl", {"a": "b.jsonl"}, ["a=b.jsonl"]
    for kind in kinds:
        if get_origin(kind) is Literal:
            return get_args(kind)[0], get_args(kind)[0], get_args(kind)[0]
        if kind is bool:
            return "true", True, True
        if kind is int and units_of(setting.name) is None:
            return "7", 7, 7
        if kind is Path:
            return "some/where", "some/where", Path("some/where")
        if get_origin(kind) is list:
            return "one two", ["one", "two"], ["one", "two"]
    return "text", "text", "text"


def called(command, environment, folder, monkeypatch, given=None):
    """Return what a command's function gets, where its flags are `given`."""
    monkeypatch.chdir(folder)
    function, got = FUNCTIONS[command], {}

    def spy(**values):
        got.update(values)

    spy.__signature__ = inspect.signature(function, eval_str=True)
    settled = settling(spy, command)
    flags = {name: one.default for name, one in inspect.signature(settled).parameters.items() if name != "ctx"}
    flags = {name: None if value is inspect.Parameter.empty else value for name, value in flags.items()} | (given or {})
    said = SimpleNamespace(name="COMMANDLINE")
    ctx = SimpleNamespace(
        obj=(None, environment), get_parameter_source=lambda name: said if name in (given or {}) else None
    )
    settled(ctx, **flags)
    return got


def in_toml(value):
    if isinstance(value, dict):
        return "{" + ", ".join(f'{name} = "{place}"' for name, place in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


@pytest.mark.parametrize(("command", "name"), EVERY)
def test_each_setting_of_each_command_is_said_by_file_variable_and_flag_in_this_order(
    command, name, tmp_path, monkeypatch
):
    setting = declared()[name]
    variable, in_file, wanted = sample(setting)
    assert called(command, {setting.variable: variable}, tmp_path, monkeypatch)[name] == wanted
    if not setting.refused_in_files:
        (tmp_path / "samza-dsl.toml").write_text(f"{name} = {in_toml(in_file)}\n")
        assert called(command, {}, tmp_path, monkeypatch)[name] == wanted
    flag = object() if setting.kind is not TABLE else ["a=flag.jsonl"]
    found = called(command, {setting.variable: variable}, tmp_path, monkeypatch, {name: flag})[name]
    assert found is flag or found == flag, "a flag has the last word"


@pytest.mark.parametrize("name", sorted({name for _, name in EVERY if declared()[name].kind is not TABLE}))
def test_a_variable_that_is_empty_is_no_value(name, tmp_path, monkeypatch, capsys):
    command = next(command for command, one in EVERY if one == name)
    with pytest.raises(typer.Exit) as ended:
        called(command, {declared()[name].variable: ""}, tmp_path, monkeypatch)
    assert ended.value.exit_code == 2
    assert f"{name} is empty" in capsys.readouterr().err


def test_config_shows_every_setting(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = settling(config, "config")
    assert declared().keys() <= {*inspect.signature(command).parameters}


def test_what_is_no_setting_of_its_name_is_known_by_command():
    assert all(name in inspect.signature(FUNCTIONS[command]).parameters for command, name in OTHERS)


def test_each_flag_of_the_control_room_is_a_setting_too():
    assert {*inspect.signature(FUNCTIONS["ui"]).parameters} - {"places"} <= declared().keys()
