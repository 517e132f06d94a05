"""A table as a sink: rows, our positions and the generation that owns them change in one transaction."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, TypeAlias

from operators.core.base import has_none
from operators.core.declared_types import type_info
from operators.core.wording import shown
from runtime.encoding.formats.rows import alternatives, unclear_keys
from runtime.model.errors import Damaged, EnvironmentFault, RowRefused, SamzaError, SerdeError, Unavailable, command
from runtime.ports.connectors import MOST_REFUSED, PositionedSink, SinkOwner, SinkRow
from runtime.systems.databases.dialect import POSITIONS, Dialect, Link, SqlConnection, Target
from runtime.systems.databases.table_columns import RowsMade, columns_for, key_maker, rows_maker

Step: TypeAlias = tuple[Iterable[tuple[object, ...]], list[tuple[object, ...]]]
"""The rows that are put, and the keys that are gone."""
AT_ONCE = 8_192
"""The rows that are appended, of which a database is given those that are made before others are."""
_log = logging.getLogger("samza_dsl")


class TableSink:
    """The table of an output in a database.

    Invariants: rows and position change in one transaction, which compares claim and position with what the database
    has; so a row takes effect once, and of an older run none does. Where a statement fails, the
    connection is dropped, and with it whatever was not committed. One thread at a time calls it.
    """

    def __init__(self, dialect: Dialect, where: str, table: str, key: Sequence[str]) -> None:
        self._dialect = dialect
        self._where = f"{where}, table {table}"
        self._name = table
        self._table = dialect.quoted(table)
        self._key = tuple(key)
        self._connection: SqlConnection | None = None
        self._target = Target(self._table, ())
        self._tokens: dict[tuple[str, str, int], int] = {}
        """The claims of this process, by what a position is kept for."""
        self._rows_of: RowsMade = lambda values: iter(())
        self._key_of: Callable[[Any], tuple[object, ...]] = lambda key: ()

    def claim(self, owner: SinkOwner) -> int:
        """Own the table for a generation of an application, making it where it is absent; return the position."""
        self._prepare(owner.value_type)
        with self._transaction() as connection:
            connection.execute(_POSITIONS_TABLE)
        is_there = self._is_there()
        with self._transaction() as connection:
            found = self._found(connection, owner)
            identity, generation, _, position = found or (owner.identity, 0, 0, 0)
            if identity == owner.identity and generation > owner.generation:
                raise owner.fenced_error(self._where)
            if not is_there and position and identity == owner.identity:
                # Looked at before this transaction: another run may have made it since, which the next try finds.
                raise Unavailable(
                    f"{self._where} is gone, and had rows up to {position:,} of {owner.output!r}: restore it, together "
                    f"with {POSITIONS}, or let the application begin anew ({command(f'reset {owner.app}')})"
                )
            connection.execute(self._dialect.create(self._target))
            if identity != owner.identity and not is_there and self._is_empty(connection):
                position = 0  # the rows of an earlier life are gone with the table
            if identity != owner.identity and position:
                raise SamzaError(
                    f"{self._where} has rows that application {owner.app!r} has written in an earlier life, with "
                    f"another data directory or before it began anew: delete the row of {owner.output!r} in "
                    f"{POSITIONS}{'' if self._key else ', and the rows that it has appended'}; or bind another table"
                )
            # Before anything is changed: who can't go on shall not fence the one that can.
            owner.check_known(position, self._where)
            # By key the rows that wait replace what they were; a table without rows has lost them as well.
            if owner.is_known and found is None and not self._key and is_there and not self._is_empty(connection):
                raise owner.lost_error(self._where, POSITIONS)
            # By the token alone a second copy of one data directory is told apart, which has the same generation.
            token = self._tokens[owner.place] = secrets.randbits(62)
            # The mark is the application's, whichever of its outputs and partitions has found no table.
            made = not is_there or any(made for app, made in self._writers(connection) if app == owner.app)
            row = (owner.identity, owner.generation, token, position)
            mark = self._dialect.mark
            if found is None:
                marks = ", ".join([mark] * 9)
                values: tuple[object, ...] = (*owner.place, *row, self._name, int(made))
                connection.execute(f"INSERT INTO {POSITIONS} VALUES ({marks})", values)
            else:
                # No column of the key: DuckDB would put another row, and let who read the old one change that unseen.
                names = f" = {mark}, ".join(("identity", "generation", "token", "position", "made"))
                values = (*row, int(made), *self._place(owner))
                connection.execute(f"UPDATE {POSITIONS} SET {names} = {mark} WHERE {self._at}", values)
            self._check(connection)
            return position

    def write(self, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int) -> None:
        """Take rows and the position behind them; raises `Fenced` where the table has another owner, or position."""
        try:
            self._write(owner, rows, position, following)
        except EnvironmentFault:
            raise
        except Exception as error:
            if isinstance(error.__cause__, Exception) and self._dialect.denies(error.__cause__):
                raise
            refused = self._refused(rows)
            if not refused:
                raise
            first, *others = refused
            # Of more rows than one look is for, others may be refused behind the first.
            also = others if len(rows) <= self._dialect.most_tried else None
            raise RowRefused(str(first), first.row, also) from first.__cause__

    def _write(self, owner: SinkOwner, rows: Sequence[SinkRow], position: int, following: int) -> None:
        steps = self._steps(rows)
        with self._transaction() as connection:
            found = self._found(connection, owner)
            mine = owner.identity, owner.generation, self._tokens.get(owner.place)
            if found != (*mine, position):
                if found == (*mine, following):
                    return  # the transaction of an earlier try, whose answer was lost
                if found is not None and found[:3] == mine:
                    raise Damaged(
                        f"{self._where} is at {found[3]:,} in {POSITIONS}, and had taken rows up to {position:,}: it "
                        "was restored from an older copy while this run wrote to it. Run the application again, which "
                        "writes the rows behind that, or says that it has them no more"
                    )
                raise owner.fenced_error(self._where)
            if rows:
                self._change(connection, steps)
            connection.execute(
                f"UPDATE {POSITIONS} SET position = {self._dialect.mark} WHERE {self._at}",
                (following, *self._place(owner)),
            )

    def _change(self, connection: SqlConnection, steps: Iterable[Step]) -> None:
        for put, gone in steps:
            if gone:
                self._dialect.remove(connection, self._dialect, self._target, gone)
            # Of rows that are appended nobody counts those that are put, before they are made.
            if put:
                self._dialect.put(connection, self._dialect, self._target, put)

    def _steps(self, rows: Sequence[SinkRow]) -> list[Step]:
        # Where the table takes other keys for one than we do, only the order of the rows says which of them counts.
        runs = groupby(rows, lambda row: row.value is None) if self._target.folds else [(False, rows)]
        return [self._changes([*some]) for _, some in runs]

    def _refused(self, rows: Sequence[SinkRow]) -> list[RowRefused]:
        """Return the rows that the table does not take, as a transaction finds that is taken back.

        Raises `Unavailable` where the database has not said, and SamzaError where no row is at fault.
        """
        most = MOST_REFUSED if len(rows) <= self._dialect.most_tried else 1
        with self._trial() as trial:
            found = self._looked_for(trial, rows, range(len(rows)), most)
            # What a constraint refuses only as it is asked may refer to rows behind it, where all of these were tried.
            late = [at for at, refused in found.items() if refused.__cause__ in trial.late and len(found) < most]
            waiting, before = late, 0
            while waiting and len(waiting) != before:
                before, waiting = len(waiting), [*self._looked_for(trial, rows, waiting, most)]
                for circle in self._circles(trial, rows, waiting) if waiting else ():
                    if {*circle}.issubset(waiting) and trial.takes([rows[at] for at in circle]) is None:
                        waiting = [at for at in waiting if at not in circle]
        if taken := {*late}.difference(waiting):
            left = [row for at, row in enumerate(rows) if at not in found or at in taken]
            with self._trial() as trial:
                # Each at its own place, as they are written.
                if trial.takes(left) is None:
                    found = {at: refused for at, refused in found.items() if at not in taken}
        return [*found.values()]

    def _circles(self, trial: _Trial, rows: Sequence[SinkRow], places: Sequence[int]) -> Iterator[list[int]]:
        """Yield the places of rows that refer to each other in a circle, with all others that these refer to."""
        names = [column.name for column in self._target.columns]
        there = [at for at in places if rows[at].value is not None]
        made = zip(there, self._rows_of([rows[at].value for at in there]), strict=True)
        by_place = {at: dict(zip(names, row, strict=True)) for at, row in made}
        needs: dict[int, set[int]] = {at: set() for at in there}
        for columns, others in trial.links(self._target):
            if not {*columns, *others}.issubset(names):
                continue
            of_values: dict[tuple[object, ...], set[int]] = {}
            for at, row in by_place.items():
                of_values.setdefault(tuple(row[name] for name in others), set()).add(at)
            for at, row in by_place.items():
                # With a NULL among them columns refer to nothing.
                values = tuple(row[name] for name in columns)
                needs[at] |= set() if None in values else of_values.get(values, set())
        for at in there:
            found, open_ones = set[int](), {at}
            while open_ones:
                open_ones = {other for one in open_ones for other in needs[one]} - found
                found |= open_ones
            if at in found:
                yield sorted(found)

    @contextmanager
    def _trial(self) -> Iterator[_Trial]:
        with self._transaction("ROLLBACK") as connection:
            yield _Trial(connection, self._dialect, lambda some: self._change(connection, self._steps(some)))

    def _looked_for(
        self, trial: _Trial, rows: Sequence[SinkRow], places: Sequence[int], most: int
    ) -> dict[int, RowRefused]:
        """Return which rows, of those at some places, a trial does not take, by their places: so many at most."""
        found: dict[int, RowRefused] = {}

        def look(some: Sequence[int]) -> None:
            error = trial.takes([rows[at] for at in some]) if len(found) < most else None
            if error is None:
                return
            if len(some) == 1:
                found[some[0]] = self._refusal(rows[some[0]], some[0], error)
                return
            # In order: rows in front are there already, as a row may need them, or be refused for them.
            middle = len(some) // 2
            look(some[:middle])
            look(some[middle:])

        look(places)
        return found

    def _refusal(self, row: SinkRow, at: int, error: Exception) -> RowRefused:
        """Return the refusal of a row; raises SamzaError for an error that is the fault of none."""
        words = str(error).strip() if isinstance(error, self._dialect.errors) else repr(error)
        words = str(error) if isinstance(error, SerdeError) else f"{self._where}: {words}"
        key = "" if row.key is None else f" of the key {shown(row.key)}"
        told = f"{words.rstrip('.')}. The row that it does not take is {shown(row.value)}{key}"
        # A table that is gone, or not as it was, takes none of the rows.
        if not isinstance(error, SerdeError) and not self._dialect.refuses(error):
            raise SamzaError(told) from error
        refused = RowRefused(told, at)
        refused.__cause__ = error
        return refused

    def empty(self, owner: SinkOwner) -> None:
        """Drop the rows of an application that begins anew, and its positions; raises SamzaError where others write.

        A table that was there before, or that others write to as well, keeps its rows where these are replaced by key.
        An application begins anew as a whole: with its rows the positions of all of its outputs there are gone.
        """
        with self._transaction() as connection:
            connection.execute(_POSITIONS_TABLE)
            if self._found(connection, owner) is None:
                if not self._key:
                    _log.warning(
                        "%s keeps its rows, as %s has nothing of %r: delete those that application %r has appended, or "
                        "they are there twice",
                        *(self._where, POSITIONS, owner.output, owner.app),
                    )
                return
            writers = self._writers(connection)
            if any(made for _, made in writers) and {app for app, _ in writers} == {owner.app}:
                connection.execute(f"DELETE FROM {self._table}")
                connection.execute(f"DELETE FROM {POSITIONS} WHERE name = {self._dialect.mark}", (self._name,))
                return
            if not self._key:
                raise SamzaError(
                    f"{self._where} has rows that application {owner.app!r} has appended, among those of others: "
                    f"delete these rows, and the row of {owner.output!r} in {POSITIONS}, and reset the application "
                    "again; or name the key of a row, by which it is replaced: key="
                )
            _log.warning("%s keeps its rows, which are replaced as they are computed anew", self._where)
            connection.execute(f"DELETE FROM {POSITIONS} WHERE {self._at}", self._place(owner))

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(*self._dialect.errors):
                connection.close()

    def _prepare(self, kind: Any) -> None:
        columns = columns_for(kind, self._where)
        if unclear := ", ".join(unclear_keys(alternatives(type_info(kind)))):
            wrong = f"{unclear} may be None or not be there, and a column has NULL for both"
            raise SamzaError(f"{self._where}: {wrong}: make the key required")
        names = [column.name for column in columns]
        for name in self._key:
            if name not in names:
                raise SamzaError(f"{self._where}: key={name!r} is no column of {names}: name columns of the value")
        self._target = Target(self._table, columns, self._key)
        self._rows_of = rows_maker(columns, self._dialect.adapt.get, self._where)
        self._key_of = key_maker(self._target.key_columns, self._dialect.adapt.get, self._where)

    def _changes(self, rows: Sequence[SinkRow]) -> Step:
        """Return the rows that are put, and the keys that are gone: by key only the last of each counts."""
        if not self._key:
            return chain.from_iterable(map(self._appended, _parts(rows))), []
        values = list(map(_VALUE, rows))
        has_gone = has_none(values)
        made = [*self._rows_of([value for value in values if value is not None] if has_gone else values)]
        names = [column.name for column in self._target.columns]
        of_key = [[row[place] for row in made] for place in map(names.index, self._key)]
        if any(map(has_none, of_key)):
            key = next(key for key in zip(*of_key, strict=True) if None in key)
            raise SerdeError(
                f"{self._where}: the key ({', '.join(self._key)}) of a row is {key}: NULL is no key, by which "
                "the row of before is found: filter such rows out, or name other columns"
            )
        of_puts = zip(zip(*of_key, strict=True), made, strict=True)
        changes: Iterable[tuple[tuple[object, ...], tuple[object, ...] | None]] = of_puts
        if has_gone:
            changes = ((self._key_of(row.key), None) if row.value is None else next(of_puts) for row in rows)
        if not self._target.folds:
            newest = dict(changes)
        else:
            newest = {}
            for key, one in changes:
                newest.pop(key, None)  # so that the last one is put behind others that the table takes for it
                newest[key] = one
        put = [row for row in newest.values() if row is not None]
        return put, [key for key, row in newest.items() if row is None]

    def _appended(self, rows: Sequence[SinkRow]) -> Iterator[tuple[object, ...]]:
        values = list(map(_VALUE, rows))
        if has_none(values):
            raise SerdeError(
                f"{self._where}: a record without a value deletes the row of its key, and rows are appended here: "
                'name the key: key="id", or filter such records out'
            )
        return self._rows_of(values)

    def _found(self, connection: SqlConnection, owner: SinkOwner) -> tuple[int, int, int, int] | None:
        found = connection.execute(
            f"SELECT identity, generation, token, position FROM {POSITIONS} WHERE {self._at}{self._dialect.lock}",
            self._place(owner),
        ).fetchall()
        return tuple(found[0]) if found else None

    def _writers(self, connection: SqlConnection) -> list[tuple[str, int]]:
        """Return who writes to the table, by output and partition: the application, and whether it has made it."""
        statement = f"SELECT app, made FROM {POSITIONS} WHERE name = {self._dialect.mark}"
        return [(app, made) for app, made in connection.execute(statement, (self._name,)).fetchall()]

    @property
    def _at(self) -> str:
        """The condition by which the position of a partition of an output in this table is found."""
        return " AND ".join(f"{name} = {self._dialect.mark}" for name in ("app", "output", "part", "name"))

    def _place(self, owner: SinkOwner) -> tuple[object, ...]:
        return (*owner.place, self._name)

    def _is_empty(self, connection: SqlConnection) -> bool:
        return not connection.execute(f"SELECT 1 FROM {self._table} LIMIT 1").fetchall()

    def _is_there(self) -> bool:
        # In a transaction of its own: where a statement fails, some databases fail all of it.
        try:
            with self._transaction() as connection:
                connection.execute(f"SELECT 1 FROM {self._table} LIMIT 0")
        except Unavailable:
            raise
        except SamzaError as error:
            if isinstance(error.__cause__, Exception) and self._dialect.denies(error.__cause__):
                raise
            return False
        return True

    def _check(self, connection: SqlConnection) -> None:
        """Raise SamzaError where the table lacks columns, or has no key as rows are told apart by."""
        names = [column.name for column in self._target.columns]
        found = connection.execute(f"SELECT * FROM {self._table} LIMIT 0").description
        there = [one[0] for one in found]
        if missing := [name for name in names if name not in there]:
            raise SamzaError(
                f"{self._where} has the columns {', '.join(there)}, and the output's values have {', '.join(missing)} "
                "as well: add these (ALTER TABLE), or bind another table"
            )
        types = self._dialect.typed(connection, self._table)
        for column in self._target.columns:
            changing, of = self._dialect.changes.get(column.kind), types.get(column.name, "")
            if changing is not None and changing.fullmatch(of):
                raise SamzaError(
                    f"{self._where}: the column {column.name} is {of}, which would keep other values than it is given, "
                    f"without a word: make it {self._dialect.types[column.kind]} (ALTER TABLE), or bind another table"
                )
        if self._key:
            compares = self._dialect.compares(connection, self._target)
            folds = self._dialect.folds(connection, self._target)
            self._target = replace(self._target, folds=folds, compares=compares)
            self._check_key(connection)

    def _check_key(self, connection: SqlConnection) -> None:
        dialect, names = self._dialect, [column.name for column in self._target.columns]
        nothing = f"SELECT {dialect.listed(names)} FROM {self._table} WHERE 1=0"
        try:
            # Planned and of no effect: it fails where ON CONFLICT has no index to go by.
            connection.execute(dialect.insert(self._target, nothing))
        except dialect.errors as error:
            if dialect.passes(error) or dialect.denies(error):
                raise
            raise SamzaError(
                f"{self._where}: {str(error).strip()}. Rows are replaced by key={', '.join(self._key)!r}: where no "
                f"index tells them apart by it, write CREATE UNIQUE {dialect.index(self._name, self._key)}"
            ) from error

    @contextmanager
    def _transaction(self, end: str = "COMMIT") -> Iterator[SqlConnection]:
        """Begin, and commit at the end; raises `Unavailable` for what passes, and SamzaError for what does not."""
        with self._dialect.told(self._where, self.close):
            if self._connection is None:
                self._connection = self._dialect.connect()
            self._connection.execute(self._dialect.begin)
            yield self._connection
            self._connection.execute(end)


def table_sink(dialect: Dialect, where: str, table: str, key: str | Sequence[str] = ()) -> PositionedSink:
    """Return a sink that puts rows into a table; raises SamzaError for names that can't be meant."""
    names = (key,) if isinstance(key, str) else tuple(key)
    if not isinstance(table, str) or not all(table.split(".")):
        raise SamzaError(f'{where}: table={table!r} names no table: write table="orders"')
    if not all(isinstance(name, str) and name for name in names):
        raise SamzaError(f'{where}: key={key!r} names no columns: write key="id", or key=("shop", "id")')
    sink = TableSink(dialect, where, table, names)
    place, how = f"{where}#{table}", (sink.claim, sink.write, sink.empty, sink.close)
    return PositionedSink(place, *how, deletes=bool(names), place=place)


class _Trial:
    """Rows that a table takes one behind the other, in a transaction that is taken back in the end."""

    def __init__(
        self, connection: SqlConnection, dialect: Dialect, change: Callable[[Sequence[SinkRow]], None]
    ) -> None:
        self._connection, self._dialect, self._change = connection, dialect, change
        self._taken: list[SinkRow] = []
        self.late: set[Exception] = set()
        """The errors of constraints that wait for the end of a transaction."""

    def links(self, target: Target) -> Sequence[Link]:
        """Return by which columns rows of a table may refer to rows behind them."""
        return self._dialect.links(self._connection, target)

    def takes(self, rows: Sequence[SinkRow]) -> Exception | None:
        """Return why the table takes no such rows behind those that it has taken, which it has still."""
        if self._dialect.has_savepoints:
            self._connection.execute("SAVEPOINT samza_dsl_rows")
        try:
            self._put(rows)
        except Exception as error:
            if isinstance(error, self._dialect.errors) and self._dialect.passes(error):
                raise
            self._go_back()
            return error
        if self._dialect.has_savepoints:
            self._connection.execute("RELEASE SAVEPOINT samza_dsl_rows")
        self._taken += rows
        return None

    def _put(self, rows: Sequence[SinkRow]) -> None:
        self._change(rows)
        if self._dialect.ask:
            try:
                self._connection.execute(self._dialect.ask)
            except self._dialect.errors as error:
                self.late.add(error)
                raise

    def _go_back(self) -> None:
        if self._dialect.has_savepoints:
            with suppress(*self._dialect.errors):
                self._connection.execute("ROLLBACK TO SAVEPOINT samza_dsl_rows")
                self._connection.execute("RELEASE SAVEPOINT samza_dsl_rows")
                return
        # Without savepoints, and where a trigger has ended the transaction, it begins anew with what was taken.
        with suppress(*self._dialect.errors):
            self._connection.execute("ROLLBACK")
        self._connection.execute(self._dialect.begin)
        if self._taken:
            self._put(self._taken)


def _parts(rows: Sequence[SinkRow]) -> Iterator[Sequence[SinkRow]]:
    # The first ones are with the database while the next are made, and none has left the processor's caches by then.
    return (rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE))


_VALUE = itemgetter(0)
_POSITIONS_TABLE = (
    f"CREATE TABLE IF NOT EXISTS {POSITIONS} (app VARCHAR(255) NOT NULL, output VARCHAR(255) NOT NULL, "
    "part INTEGER NOT NULL, identity BIGINT NOT NULL, generation BIGINT NOT NULL, token BIGINT NOT NULL, "
    "position BIGINT NOT NULL, name VARCHAR(255) NOT NULL, made INTEGER NOT NULL, "
    "PRIMARY KEY (app, output, part, name))"
)
