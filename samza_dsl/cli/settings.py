"""The settings of commands: each is declared once, and said by a file, a variable or a flag."""

from __future__ import annotations

import inspect
import os
import shlex
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import typer
from typer.models import OptionInfo

from operators.core.base import NOWHERE
from planner.model.errors import PlanError
from planner.model.plan import Options
from runtime.model.urls import concealed, secrets_in
from samza_dsl.application.app import App
from samza_dsl.application.loading import load_app
from samza_dsl.cli.errors import SAID_ELSEWHERE, WHERE_TYPED, told
from samza_dsl.fluent.checks import check_options
from samza_dsl.settings import logs
from samza_dsl.settings.quantities import quantity_of, said_of, units_of
from samza_dsl.settings.sources import TABLE, Setting, Sources, Stated, WrongSetting, file_of, is_secret

OTHERS = {
    *(("scale", "containers"), ("checkpoint set", "state"), ("delete", "bind")),
    # What is computed beside a run must not write where its settings say, and does not run as it does.
    *(("reprocess", name) for name in ("bind", "containers", "on", "master")),
    *(("evolve", name) for name in ("on", "master")),
    # A plan is shown where nothing that is bound need be there.
    *(("plan", name) for name in ("bind", "on")),
}
"""The flags that say something else than the setting of their name, by command: no file or variable may say them."""
LOADING = {"run", "drain", "evolve", "reprocess", "plan", "take-over", "kafka topics"}
"""The commands that take an application's program, and not its name."""
RUNS = {"run", "reprocess"}
OF_OPTIONS = {*RUNS, "plan", "config"}
"""The commands that have a flag for each option of an application; all others heed files and variables alone."""
ONCE = "is about one run, and would hold for each one that is started again"
OF_ONE_RUN = dict.fromkeys(("from_start", "state", "forget", "drain", "apply", "convert"), ONCE)
HIDDEN = "(hidden)"
DEFAULTS = Options()

LOG = {
    "log_format": (
        Annotated[
            Literal["text", "json"],
            typer.Option(help="Write the log as lines of text, or each line as an object of JSON.", show_default=True),
        ],
        "text",
    ),
    "log_level": (
        Annotated[
            Literal["debug", "info", "warning", "error"],
            typer.Option(help="Write what is at least so grave into the log.", show_default=True),
        ],
        "warning",
    ),
}
"""The settings of the log: they are of the process, and so in no command's own parameters."""


class Settled:
    """The settings of one command as it is called: each with its value and where that was said."""

    def __init__(self, sources: Sources, command: str, whole: bool) -> None:
        self.values: dict[str, Stated] = {}
        self.options: dict[str, Stated] = {}
        self._sources = sources
        self._loads, self._logs, self._whole = command in LOADING, command in RUNS, whole
        self._apps: dict[str, App] = {}
        self._flags: dict[str, Stated] = {}
        self._name: str | None = None

    def app(self, target: str) -> App:
        """Return the application of a file or module, loaded once, with the options that were said for it."""
        app = self._apps.get(target)
        if app is None:
            with told(whole=self._whole, loading=True):
                app = self._apps[target] = load_app(target)
                self._name = app.name
                self._settle_options(app)
        return app

    def settle(self, flags: Mapping[str, object], given: frozenset[str], target: str | None) -> dict[str, object]:
        """Return the value of each parameter, given those that flags `given` say, for the application at `target`."""
        self._flags = {name: Stated(flags[name], f"--{name.replace('_', '-')}") for name in given}
        self._name = target
        self._configure_log(flags)  # before the application is read: its mistakes are told in that form, too
        if target is not None and self._is_program(target):
            self.app(target)
            self._configure_log(flags)
        found: dict[str, object] = {}
        for name, value in flags.items():
            said = self._stated(name, value)
            self.values[name], found[name] = said, said.value
            for secret in _secrets_of(name, said.value):
                logs.hide(secret)
        return found

    def kafka(self) -> dict[str, Stated]:
        """Return what is said of the options of Kafka's clients beside a file of them."""
        found = self._sources.kafka(self._name)
        for name, said in found.items():
            for secret in _secrets_of(name, said.value):
                logs.hide(secret)
        return found

    def elsewhere(self) -> dict[str, str]:
        """Return where the flags and the options of Kafka's clients are said that errors name, and nobody typed."""
        said = {name: one.where for name, one in {**self.values, **self.options}.items()}
        flags = {f"--{name.replace('_', '-')}": where for name, where in said.items() if _is_elsewhere(where)}
        # What is told of a file or an address names neither flag nor setting, and has it in quotes.
        texts = [one for one in {**self.values, **self.options}.values() if isinstance(one.value, str | Path)]
        quoted = {repr(str(one.value)): one.where for one in texts if _is_elsewhere(one.where)}
        return {**flags, **quoted, **self._sources.kafka_places(self._name)}

    def where_typed(self) -> str:
        """Return the flag that says where streams and state are, if it was typed and stands in no file or variable."""
        typed = [
            name for name in ("environment", "data") if name in self._flags and self._flags[name].value is not None
        ]
        return f"--{typed[0]} {shlex.quote(str(self._flags[typed[0]].value))}" if typed else ""

    def rows(self) -> list[tuple[str, str, str]]:
        """Return every setting with its value, as it is written, and where it was said; no secret is shown."""
        rows = [(name, _shown(name, said.value), said.where) for name, said in {**self.values, **self.options}.items()]
        kafka = [(f"kafka.{name}", _shown(name, said.value), said.where) for name, said in self.kafka().items()]
        return [*rows, *kafka]

    def _configure_log(self, flags: Mapping[str, object]) -> None:
        if self._logs:
            form, level = (str(self._stated(name, flags[name]).value) for name in LOG)
            loaded = [app.name for app in self._apps.values()]
            logs.configure(form, level, {"app": loaded[0]} if loaded else {})

    def _stated(self, name: str, unsaid: object) -> Stated:
        default = getattr(DEFAULTS, name) if name in Options.__struct_fields__ else unsaid
        return self._said(self._sources.known[name]) or Stated(default, "default")

    def _said(self, setting: Setting) -> Stated | None:
        """Return what a flag says, or else a variable or file; the names of a table are taken together."""
        elsewhere, flag = self._sources.said(setting, self._name), self._flags.get(setting.name)
        if setting.kind is not TABLE:
            return flag or elsewhere
        places = elsewhere.value if elsewhere is not None else {}
        own = flag.value if flag is not None else []
        assert isinstance(places, dict) and isinstance(own, list), "a table has places by name, a flag says some"
        bound = {one.partition("=")[0] for one in own}
        all_said = [*(f"{name}={place}" for name, place in places.items() if name not in bound), *own]
        where = ", ".join(one.where for one in (elsewhere, flag) if one is not None)
        return Stated(all_said, where) if where else None

    def _is_program(self, target: str) -> bool:
        # Commands that look at what an application has left take its name as well as its file.
        return self._loads or target.partition(":")[0].endswith(".py")

    def _settle_options(self, app: App) -> None:
        changed: dict[str, Stated] = {}
        for name in Options.__struct_fields__:
            said = self._said(self._sources.known[name])
            code = getattr(app.options, name)
            where = "default" if code == getattr(DEFAULTS, name) else "code"
            if said is not None:
                changed[name] = said
            self.options[name] = said or Stated(code, where)
        if wrong := _wrong_options(app.options, changed):
            # Who is to blame is one without whom it would not be so.
            blamed = [one for name, one in changed.items() if _wrong_options(app.options, changed, but=name) != wrong]
            wheres = ", ".join(sorted({said.where for said in blamed or changed.values()}))
            raise WrongSetting(f"{wheres}: {wrong}")
        app.options = _changed(app.options, changed)


def _changed(options: Options, changed: Mapping[str, Stated]) -> Options:
    return msgspec.structs.replace(options, **{name: said.value for name, said in changed.items()})


def _wrong_options(options: Options, changed: Mapping[str, Stated], but: str = "") -> str:
    """Return what is wrong with options that are changed so, `but` for one of them; "" where nothing is."""
    try:
        check_options(NOWHERE, _changed(options, {name: said for name, said in changed.items() if name != but}))
    except PlanError as error:
        return str(error).removeprefix(f"{NOWHERE}: ")
    return ""


_settled: ContextVar[Settled | None] = ContextVar("_settled", default=None)


def loaded(target: str) -> App:
    """Return the application at `target`, with the options that settings give it; each command loads it once."""
    settled = _settled.get()
    return load_app(target) if settled is None else settled.app(target)


def kafka_said() -> dict[str, object]:
    """Return the options of Kafka's clients that files and variables say."""
    settled = _settled.get()
    return {} if settled is None else {name: said.value for name, said in settled.kafka().items()}


def settling(function: Callable[..., None], name: str = "") -> Callable[..., None]:
    """Return the command `name` so that it takes what its flags do not say from variables and files.

    A flag is a setting where there is one of its name, whichever command has it, but for `OTHERS`. Commands that run or
    plan an application get a flag for each of its options, too.
    """
    own = _parameters(function)
    added = _added(name)
    settings = {one for one in (*own, *added) if (name, one) not in OTHERS}

    def command(ctx: typer.Context, **flags: object) -> None:
        whole = bool(flags.get("traceback"))
        try:
            with told(whole=whole):
                settled_and_done(ctx, flags, whole)
        finally:
            logs.unconfigure()

    def settled_and_done(ctx: typer.Context, flags: dict[str, object], whole: bool) -> None:
        named, environment = ctx.obj or (None, os.environ)
        known = declared()
        settled = Settled(Sources(known.values(), file_of(named), environment), name, whole)
        token = _settled.set(settled)
        elsewhere, typed = SAID_ELSEWHERE.set({}), WHERE_TYPED.set("")
        try:
            target = flags.get("target")
            values = settled.settle(
                {one: value for one, value in flags.items() if one in settings and one in known},
                frozenset(one for one in settings & known.keys() if _is_given(ctx, one)),
                target if isinstance(target, str) else None,
            )
            SAID_ELSEWHERE.set(settled.elsewhere())
            WHERE_TYPED.set(settled.where_typed())
            function(**{one: value for one, value in {**flags, **values}.items() if one in own})
        finally:
            SAID_ELSEWHERE.reset(elsewhere)
            WHERE_TYPED.reset(typed)
            _settled.reset(token)

    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in {**own, **added}.values()]
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


@cache
def declared() -> dict[str, Setting]:
    """Return all settings by name: those of `run` and `ui`, the options of an application, and the log's."""
    found: dict[str, Setting] = {}
    for name, parameter in {**_of_runs(), **_added("run")}.items():
        kind, option = get_args(parameter.annotation)[:2]
        if not isinstance(option, OptionInfo):
            continue  # an argument, the application
        is_table = str in _items(kind) and str(option.metavar).startswith("NAME=")
        found[name] = Setting(name, TABLE if is_table else kind, OF_ONE_RUN.get(name, ""), option.min)
    return found


def config(
    target: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="The file of the application; else what holds for all.")
    ] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the whole traceback of an error.")] = False,
) -> None:
    """Show each setting of a run with its value, and where it is said: a file's line, a variable, a flag, or the code.

    It takes the flags of `run`, and shows what a run with these would have. Secrets are not shown.
    """
    settled = _settled.get()
    assert settled is not None, "the command line calls it, by `settling`"
    from samza_dsl.cli.output import Column, print_rows  # what draws tables, which no other command does for this

    print_rows([Column("setting"), Column("value"), Column("said by")], settled.rows())


def _parameters(function: Callable[..., None]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function, eval_str=True).parameters)


def _added(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters that a command gets beside its own."""
    found: dict[str, inspect.Parameter] = {}
    if name in OF_OPTIONS:
        found |= {one: _option(one, kind) for one, kind in get_type_hints(Options, include_extras=True).items()}
    if name in {*RUNS, "config"}:
        log = {one: (kind, default) for one, (kind, default) in LOG.items()}
        found |= {one: _keyword(one, kind, default) for one, (kind, default) in log.items()}
    if name == "config":
        own = _parameters(config)
        found |= {one: what for one, what in _of_runs().items() if one in declared() and one not in own}
    return found


def _of_runs() -> dict[str, inspect.Parameter]:
    """Return the parameters of `run` and `ui`: but for its address those of `ui` are among the others."""
    # Imported late: commands import this module for their application. The module of `ui` takes longer than a run.
    from samza_dsl.cli.run import UI_ADDRESS, UiAddressOption, run

    return {"ui_address": _keyword("ui_address", UiAddressOption, UI_ADDRESS), **_parameters(run)}


def _option(name: str, hint: object) -> inspect.Parameter:
    """Return the parameter for an option of an application: without a flag it is unsaid, and the code's holds."""
    kind, meta = get_args(hint)[:2]
    assert isinstance(meta, msgspec.Meta), "each option is described beside its type"
    how: dict[str, Any] = {"help": meta.description}
    if (suffix := units_of(name)) is not None:
        how |= {"parser": partial(_quantity, suffix), "metavar": "TIME" if suffix == "_ms" else "SIZE"}
    return _keyword(name, Annotated[kind | None, typer.Option(**how)], None)


def _keyword(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _quantity(suffix: str, said: str) -> int:
    try:
        return quantity_of(suffix, said)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _is_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _items(kind: object) -> set[object]:
    """Return the types of the items of a list, be it optional."""
    lists = [one for one in (kind, *get_args(kind)) if get_origin(one) is list]
    return {item for one in lists for item in get_args(one)}


def _is_elsewhere(where: str) -> bool:
    return where not in ("default", "code") and not where.startswith("--")


def _secrets_of(name: str, value: object) -> list[str]:
    """Return what no line may have of a setting's value: all of a secret, and what URLs have of one."""
    if value is None:
        return []
    if is_secret(name):
        return [str(value)]
    texts = value if isinstance(value, list) else [value]
    return [secret for text in texts if isinstance(text, str) for secret in secrets_in(text)]


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    if is_secret(name):
        return HIDDEN
    texts = value if isinstance(value, list) else [said_of(name, value)]
    return " ".join(concealed(str(one), HIDDEN) for one in texts)
