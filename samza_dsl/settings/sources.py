"""The places of settings that no flag says: a TOML file, with sections for applications, and the environment."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_origin

import msgspec

from runtime.model.errors import SamzaError
from runtime.systems.kafka.client.topic import check_is_option
from samza_dsl.settings.quantities import UNITS, quantity_of, units_of

# Invariant: an unknown key is an error wherever it is said, so that a mistyped one never goes unheeded.
FILE, PYPROJECT, TOOL = "samza-dsl.toml", "pyproject.toml", "samza-dsl"
PREFIX = "SAMZA_DSL_"
APPS, KAFKA = "apps", "kafka"
BROKER = f"{PREFIX}{KAFKA.upper()}"
"""The variable that says which broker `kafka start` starts: no setting, and known by itself, as its module is slow."""
OF_KAFKA = f"{BROKER}_"
"""The beginning of the variables that say options of Kafka's clients."""
SECRET = re.compile(r"(.*_)?(password|secret|token)")
FROM_FILE = "_file"
"""The end of the key that names a file which has a secret."""
_OF_KUBERNETES = re.compile(r"(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT|PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)")
"""The variables that Kubernetes sets for a Service that is called samza-dsl: none of ours."""
_TOO_MANY_LINES = 5_000
"""A file with more lines than this is not searched for the line of a key."""
TABLE = object()
"""The kind of a setting that is a table of names and places; a flag says one `NAME=PLACE` at a time."""


class WrongSetting(Exception):
    """A setting that can't be meant: where it is said, what is wrong, and what to write instead."""


class Setting(NamedTuple):
    """A setting's name, the type of its values, and why a file may not have it, where it is about one run alone.

    A number that it says is at least `least`.
    """

    name: str
    kind: object
    refused_in_files: str = ""
    least: float | None = None

    @property
    def variable(self) -> str:
        """The environment variable that says it."""
        return PREFIX + self.name.upper()


class Stated(NamedTuple):
    """A value, and where it was said: a file with its line, a variable, a flag, the code, or nowhere (default)."""

    value: object
    where: str


@dataclass(frozen=True, repr=False)
class SettingsFile:
    """The settings in a TOML file: below `table`, the path of keys that leads to them."""

    path: Path
    text: str
    table: tuple[str, ...]

    @cached_property
    def settings(self) -> Mapping[str, object]:
        """All that is said in it; raises `WrongSetting` where it is no TOML."""
        try:
            found: object = tomllib.loads(self.text)
        except ValueError as error:
            raise WrongSetting(f"{self.path} can't be read as TOML: {error}") from None
        for key in self.table:
            found = found.get(key, {}) if isinstance(found, dict) else {}
        if not isinstance(found, dict):
            raise WrongSetting(f"{self.path}: {'.'.join(self.table)} is no table: write [{'.'.join(self.table)}]")
        return found

    def where(self, *keys: str) -> str:
        """Return the file and the line on which a key's value begins."""
        lines = self.text.splitlines(keepends=True)
        if len(lines) > _TOO_MANY_LINES:
            return str(self.path)
        # By the parser itself, so that strings of many lines and inline tables mislead nobody: the key is in the first
        # part of the file that is TOML and has it, and begins behind the last part that is TOML without it.
        begins = 0
        for number in range(1, len(lines) + 1):
            try:
                found: object = tomllib.loads("".join(lines[:number]))
            except ValueError:
                continue
            if _holds(found, (*self.table, *keys)):
                return f"{self.path}:{begins + 1}"
            begins = number
        return str(self.path)


def _holds(found: object, keys: Iterable[str]) -> bool:
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            return False
        found = found[key]
    return True


def file_of(named: Path | None, folder: Path = Path()) -> SettingsFile | None:
    """Return the file that was named, or else that of a folder: samza-dsl.toml, or pyproject.toml where it has a part.

    Raises `WrongSetting` where the one that was named can't be read.
    """
    if named is not None:
        try:
            text = named.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WrongSetting(f"--config {named} can't be read: {error}") from None
        return SettingsFile(named, text, ("tool", TOOL) if named.name == PYPROJECT else ())
    for name, table in ((FILE, ()), (PYPROJECT, ("tool", TOOL))):
        path = folder / name
        if not path.is_file():
            continue
        text = path.read_text(encoding="utf-8")
        # A project's file is there for many reasons: only what is ours in it is asked for.
        if not table or TOOL in text:
            return SettingsFile(path, text, table)
    return None


class Sources:
    """The file and the environment variables that say settings; flags and code are known where they are given.

    `settings` are all that may be said. Raises `WrongSetting` at once for an unknown key, with the nearest one.
    """

    def __init__(self, settings: Iterable[Setting], file: SettingsFile | None, environment: Mapping[str, str]) -> None:
        self.known = {one.name: one for one in settings}
        self._file = file
        self._variables = {name: value for name, value in environment.items() if name.startswith(PREFIX)}
        self._check_file()
        self._check_variables()

    def said(self, setting: Setting, app: str | None) -> Stated | None:
        """Return what is said of a setting, for all applications or for `app`, by who has the last word."""
        found: Stated | None = None
        for one in [*self._in_file(setting, app), *self._in_environment(setting)]:
            if setting.kind is TABLE and found is not None:
                assert isinstance(found.value, dict) and isinstance(one.value, dict), "a table is converted to one"
                one = Stated({**found.value, **one.value}, one.where)
            found = one
        return found

    def kafka(self, app: str | None) -> dict[str, Stated]:
        """Return what is said of the options of Kafka's clients; what a `..._file` names is read."""
        found: dict[str, Stated] = {}
        for key, value, where in self._kafka_said(app):
            found[_secret_of(key) or key] = _of_client(key, value, where)
        return found

    def kafka_places(self, app: str | None) -> dict[str, str]:
        """Return where each of the options of Kafka's clients is said."""
        return {_secret_of(key) or key: where for key, _, where in self._kafka_said(app)}

    def _kafka_said(self, app: str | None) -> Iterable[tuple[str, object, str]]:
        for path in self._sections(app):
            for key, value in self._table((*path, KAFKA)).items():
                yield key, value, self._where(*path, KAFKA, key)
        for variable, text in self._variables.items():
            key = variable.removeprefix(OF_KAFKA).lower()
            if variable.startswith(OF_KAFKA) and key != "options" and not _is_of_kubernetes(variable):
                yield key, text, variable

    def _sections(self, app: str | None) -> list[tuple[str, ...]]:
        return [(), *([(APPS, app)] if app is not None else [])]

    def _table(self, path: tuple[str, ...]) -> dict[str, object]:
        found: object = self._file.settings if self._file is not None else {}
        for key in path:
            found = found.get(key, {}) if isinstance(found, dict) else {}
        return found if isinstance(found, dict) else {}

    def _where(self, *keys: str) -> str:
        assert self._file is not None, "what is said in a file is asked for by its key"
        return self._file.where(*keys)

    def _in_file(self, setting: Setting, app: str | None) -> Iterable[Stated]:
        for path in self._sections(app):
            table, name = self._table(path), setting.name
            if is_secret(name) and name + FROM_FILE in table:
                where = self._where(*path, name + FROM_FILE)
                yield Stated(read_secret(where, table[name + FROM_FILE]), where)
            elif name in table:
                where = self._where(*path, name)
                yield Stated(converted(setting, table[name], where), where)

    def _in_environment(self, setting: Setting) -> Iterable[Stated]:
        variable = setting.variable
        named = variable + FROM_FILE.upper()
        if is_secret(setting.name) and named in self._variables:
            yield Stated(read_secret(named, self._variables[named]), named)
        if variable in self._variables:
            yield Stated(converted(setting, self._variables[variable], variable), variable)

    def _check_file(self) -> None:
        if self._file is None:
            return
        apps = self._file.settings.get(APPS, {})
        if not isinstance(apps, dict):
            raise WrongSetting(f"{self._where(APPS)}: apps is no table: write [apps.NAME], with an application's name")
        for path in [(), *((APPS, name) for name in apps)]:
            if not isinstance(_at(self._file.settings, path), dict):
                raise WrongSetting(f"{self._where(*path)}: {'.'.join(path)} is no table: write [{'.'.join(path)}]")
            for key in self._table(path):
                if key == KAFKA:
                    self._check_clients((*path, KAFKA))
                elif path or key != APPS:
                    self._check_key(path, key)

    def _check_clients(self, path: tuple[str, ...]) -> None:
        assert self._file is not None, "a table of options stands in a file"
        if not isinstance(_at(self._file.settings, path), dict):
            raise WrongSetting(f"{self._where(*path)}: {KAFKA} is no table: write [{'.'.join(path)}]")
        for key in self._table(path):
            _check_client(key, self._where(*path, key))

    def _check_key(self, path: tuple[str, ...], key: str) -> None:
        where = self._where(*path, key)
        setting = self.known.get(key)
        if setting is None:
            if _secret_of(key) in self.known:
                return
            raise WrongSetting(f"{where}: there is no setting {key!r}; {self._nearest(key)}")
        if setting.refused_in_files:
            flag = f"--{key.replace('_', '-')}"
            raise WrongSetting(f"{where}: {key} {setting.refused_in_files}: say {flag}, or {setting.variable}")
        _check_no_secret(key, where)

    def _check_variables(self) -> None:
        names = {one.variable for one in self.known.values()} | {f"{PREFIX}CONFIG", BROKER}
        names |= {one.variable + FROM_FILE.upper() for one in self.known.values() if is_secret(one.name)}
        for name in self._variables:
            if name in names or _is_of_kubernetes(name):
                continue
            if name.startswith(OF_KAFKA):
                _check_client(name.removeprefix(OF_KAFKA).lower(), name)
            else:
                nearest = get_close_matches(name, names, n=1, cutoff=0.0)
                raise WrongSetting(f"the variable {name} says no setting; did you mean {nearest[0]}?")

    def _nearest(self, key: str) -> str:
        nearest = get_close_matches(key, [*self.known, APPS, KAFKA], n=1, cutoff=0.0)
        return f"did you mean {nearest[0]!r}?" if nearest else "there are none here"


def _is_of_kubernetes(variable: str) -> bool:
    return _OF_KUBERNETES.fullmatch(variable.removeprefix(PREFIX)) is not None


def _check_client(key: str, where: str) -> None:
    """Refuse what is no option of Kafka's clients, also where no cluster is used yet; raises `WrongSetting`."""
    try:
        check_is_option(_secret_of(key) or key)
    except SamzaError as error:
        raise WrongSetting(f"{where}: {error}") from None


def _of_client(key: str, value: object, where: str) -> Stated:
    if _secret_of(key) is not None:
        return Stated(read_secret(where, value), where)
    if not where.startswith(OF_KAFKA):
        _check_no_secret(key, where)
    if isinstance(value, str) and key.endswith("_ms"):
        try:
            value = quantity_of("_ms", value)
        except ValueError as error:
            raise WrongSetting(f"{where}: {key} can't be {value!r}: {error}") from None
    return Stated(value, where)


def is_secret(name: str) -> bool:
    """Whether a setting's value is shown nowhere.

    >>> is_secret("ssl_password"), is_secret("ui_token"), is_secret("token_url")
    (True, True, False)
    """
    return SECRET.fullmatch(name) is not None


def _secret_of(key: str) -> str | None:
    """Return the secret that the file named by `key` has, where it is the key of one."""
    name = key.removesuffix(FROM_FILE)
    return name if name != key and is_secret(name) else None


def _check_no_secret(key: str, where: str) -> None:
    """Refuse a secret that is written out where others read it: a file of settings is copied, shown and kept."""
    if is_secret(key):
        raise WrongSetting(
            f'{where}: {key} is a secret, and does not belong into this file: write {key}{FROM_FILE} = "/run/secrets/'
            f'{key}", a file that only the application may read, or set the variable that ends with {key.upper()}'
        )


def read_secret(where: str, path: object) -> str:
    """Return the secret in a file, without the end of its line; raises `WrongSetting`, which never shows it."""
    if not isinstance(path, str):
        raise WrongSetting(f"{where}: this is no path of a file with a secret")
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        told = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise WrongSetting(f"{where}: the secret in {path} can't be read: {told}") from None


def converted(setting: Setting, value: object, where: str) -> object:
    """Return a value of the setting's type, from a file's TOML or a variable's text; raises `WrongSetting`."""
    name, is_text = setting.name, isinstance(value, str)
    if value == "" and setting.kind is not TABLE and not is_secret(name):
        # A path that is empty would be the current directory.
        raise WrongSetting(f"{where}: {name} is empty: write {_written(setting)}, or leave it out")
    suffix = units_of(name)
    try:
        if setting.kind is TABLE:
            return _table_of(value)
        if suffix is not None and is_text:
            return quantity_of(suffix, str(value))
        if is_text and list in {getattr(one, "__origin__", one) for one in (setting.kind, *get_args(setting.kind))}:
            value = str(value).split()
        # A variable is text and says a number by it; a file has types of its own, and says no number by a string.
        is_lenient = where.startswith(PREFIX)
        # Of text that is one choice of several, too: "4" is no number there.
        found: object = msgspec.convert(value, setting.kind, strict=not is_lenient, dec_hook=_path_of)
    except msgspec.ValidationError:
        shown = "what is said" if is_secret(name) else f"{value!r}"
        raise WrongSetting(f"{where}: {name} can't be {shown}: write {_written(setting)}") from None
    except ValueError as error:
        shown = "what is said" if is_secret(name) else f"{value!r}"
        raise WrongSetting(f"{where}: {name} can't be {shown}: {error}") from None
    if setting.least is not None and isinstance(found, int) and found < setting.least:
        raise WrongSetting(f"{where}: {name} can't be {found}: write {_written(setting)}")
    return found


def _written(setting: Setting) -> str:
    """Return how a value of a setting is written."""
    suffix = units_of(setting.name)
    if suffix is not None:
        return f"a quantity such as {UNITS[suffix][2]}"
    if setting.kind is TABLE:
        return 'a table of names and places, or a list of "NAME=PLACE"'
    kinds = {setting.kind, *get_args(setting.kind)}
    if Path in kinds:
        return "a path"
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return " or ".join(map(str, choices))
    if bool in kinds:
        return "true or false"
    if int in kinds:
        return "a whole number" + (f" of at least {setting.least:g}" if setting.least is not None else "")
    return "a list of texts" if any(get_origin(kind) is list for kind in kinds) else "text"


def _path_of(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"{value!r} is no {kind.__name__.lower()}")


def _table_of(value: object) -> dict[str, str]:
    """Return places by name, from a table, or from NAME=PLACE in a list or between blanks."""
    if isinstance(value, dict):
        return {str(name): msgspec.convert(place, str) for name, place in value.items()}
    found = {}
    for one in value.split() if isinstance(value, str) else msgspec.convert(value, list[str]):
        name, equals, place = one.partition("=")
        if not equals or not name or not place:
            raise ValueError(f"{one!r} names no place: write NAME=PLACE")
        found[name] = place
    return found


def _at(found: object, path: tuple[str, ...]) -> object:
    for key in path:
        found = found.get(key, {}) if isinstance(found, dict) else {}
    return found
