"""An environment whose streams and applications have names of their own, so that tests share a cluster."""

from collections.abc import Mapping

from runtime.model.errors import EnvironmentFault
from runtime.ports.commits import Commit


class Apart:
    """Another environment, with a prefix before each name of a stream and an application, which nobody sees."""

    def __init__(self, environment, prefix: str) -> None:
        self._environment, self._prefix = environment, prefix

    def __getattr__(self, method: str):
        def call(name, *rest):
            return self._told(method, self._named(name), *rest)

        return call

    def version(self):
        return self._environment.version()

    def close(self):
        self._environment.close()

    def streams(self, among=None):
        found = self._environment.streams(among and [self._named(name) for name in among])
        mine = {name: config for name, config in found.items() if name.startswith(self._prefix)}
        return {name.removeprefix(self._prefix): config for name, config in mine.items()}

    def applications(self):
        return [app.removeprefix(self._prefix) for app in self._environment.applications() if self._prefix in app]

    def append(self, appends):
        self._told("append", [one._replace(stream=self._named(one.stream)) for one in appends])

    def commit(self, commit: Commit):
        appends = [one._replace(stream=self._named(one.stream)) for one in commit.appends]
        consumed: Mapping = {(self._named(stream), part): at for (stream, part), at in commit.consumed.items()}
        self._told("commit", commit._replace(app=self._named(commit.app), appends=appends, consumed=consumed))

    def _named(self, name: str) -> str:
        return self._prefix + name if name and not name.startswith(".") and len(name) <= 200 else name

    def _told(self, method: str, *what):
        try:
            return getattr(self._environment, method)(*what)
        except EnvironmentFault as error:
            raise type(error)(str(error).replace(self._prefix, "")) from error
