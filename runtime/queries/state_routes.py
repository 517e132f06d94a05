"""Routes a request for state to the container whose tasks have it, where each has its own tasks' state."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

import msgspec

from planner.model.graph import Graph
from runtime.encoding.json_text import to_json
from runtime.encoding.keys import bytes_of_key
from runtime.queries.state_requests import NoAnswer, StateAnswer, StateRequest, keys_of, parameters_of
from runtime.queries.state_shape import shapes_of
from runtime.queries.stored_entries import STORED

MOST_DIGITS = 9
"""The digits that a task's number has at most."""
Asked = Callable[[StateRequest], Awaitable[StateAnswer]]


class StateRoutes:
    """The containers of a run by the tasks that they have; the one that a key's hash names is asked first.

    A range goes through one container after the other: each page's token begins with the slot of its container.

    `held` tells the tasks of each container that has begun, by its slot, as they are now: they move while one waits for
    a commit. `others` tells where the tasks are that no container of this machine has, by their numbers.
    """

    def __init__(
        self,
        graph: Graph,
        tasks: int,
        held: Callable[[], Mapping[int, Collection[int]]],
        asked: Callable[[int], Asked],
        others: Callable[[], Awaitable[Mapping[int, str]]] | None = None,
    ) -> None:
        self._shapes = {shape.operator: shape for shape in shapes_of(graph)}
        self._tasks, self._held, self._asked, self._others = tasks, held, asked, others

    async def answer(self, request: StateRequest) -> StateAnswer:
        """Return the answer of the first container that has one, or why none has, and what other machines may have."""
        answer = await self._here(request)
        left = {*range(self._tasks)} - self._own()
        if self._others is None or not left or request.operator not in self._shapes:
            return answer
        if answer.status == 404:
            return await self._misdirected(request, answer)
        if answer.is_page:
            told = await self._others()
            elsewhere = [{"task": task, "in": told.get(task, "")} for task in sorted(left)]
            share = f',"tasks":{to_json(sorted(self._own())).decode()},"elsewhere":{to_json(elsewhere).decode()}'
            return msgspec.structs.replace(answer, text=answer.text + share)
        return answer

    def _own(self) -> set[int]:
        return {task for tasks in self._held().values() for task in tasks}

    async def _misdirected(self, request: StateRequest, none: StateAnswer) -> StateAnswer:
        """Return where a key would be that has no state here: the one machine that would have it says that it has none.

        Who follows comes to an end so. Of a text that may be several keys, the likeliest alone has a place.
        """
        assert self._others is not None
        task = next(iter(self._tasks_of(request.operator, parameters_of(request.said))), None)
        if task is None or task in self._own():
            return none
        where = (await self._others()).get(task, "")
        if not where:
            return _nowhere(task).answer
        return NoAnswer(421, f"its task, {task}, is not on this machine: it is in {where}").answer

    async def _here(self, request: StateRequest) -> StateAnswer:
        try:
            said = parameters_of(request.said)
            if not self._held():
                raise NoAnswer(503, "no container has begun yet")
            if "page" in said:
                return await self._page(request, said["page"].decode("latin-1"))
            if "key" in said:
                return await self._one(request, said)
            if STORED in said and request.operator:
                await self._check_all_are_somewhere()
        except NoAnswer as refused:
            return refused.answer
        if not request.operator:
            return await self._asked(min(self._held()))(request)
        return await self._range(min(self._held()), request.operator, request.said, request.said)

    async def _check_all_are_somewhere(self) -> None:
        """Raise `NoAnswer` where a task is in no container: who wants the whole range waits for it, as for a key."""
        left = {*range(self._tasks)} - self._own()
        told = await self._others() if left and self._others is not None else {}
        if nowhere := left - told.keys():
            raise _nowhere(min(nowhere))

    async def _one(self, request: StateRequest, said: Mapping[str, bytes]) -> StateAnswer:
        refused: dict[int, StateAnswer] = {}
        asked: set[tuple[int, frozenset[int]]] = set()
        # Anew after each answer: a task that moves meanwhile is in neither of two containers as each is asked.
        while True:
            held = {slot: frozenset(tasks) for slot, tasks in self._held().items()}
            ranked = self._ranked(request.operator, said, held)
            slot = next((one for one in ranked if (one, held[one]) not in asked), None)
            if slot is None:
                break
            answer = await self._asked(slot)(request)
            # Who was asked while tasks came or went may have had this one before, or behind it: it is asked again.
            if held[slot] == frozenset(self._held().get(slot, ())):
                asked.add((slot, held[slot]))
            if answer.status not in (404, 503):
                return self._going_on(slot, request.said, answer)
            refused[slot] = answer
        # That one container has nothing is no answer as long as another one cannot say.
        return max(
            refused.values(), key=lambda one: one.status, default=NoAnswer(503, "all containers are gone").answer
        )

    def _going_on(self, slot: int, first: str, answer: StateAnswer) -> StateAnswer:
        """Return an answer of one key's entries, whose next page is in the same container."""
        if not answer.next_page:
            return answer
        encoded = base64.urlsafe_b64encode(first.encode()).decode()
        return msgspec.structs.replace(answer, next_page=f"{slot}.{answer.next_page}.{encoded}")

    def _ranked(self, operator: str, said: Mapping[str, bytes], held: Mapping[int, frozenset[int]]) -> list[int]:
        """Return the slots, that of the task which a key's hash names ahead of all."""
        likely = {*self._tasks_of(operator, said)}
        return sorted(held, key=lambda slot: likely.isdisjoint(held[slot]))

    def _tasks_of(self, operator: str, said: Mapping[str, bytes]) -> list[int]:
        """Return the tasks that the partitioner gives the keys which were meant, the likeliest first."""
        shape = self._shapes.get(operator)
        found: list[int] = []
        if shape is None:
            return found
        if STORED in said:  # who asks so has said the task
            task = said.get("task", b"")
            return [int(task)] if task.isdigit() and len(task) <= MOST_DIGITS else found
        for key in keys_of(shape.key, said["key"]):
            with suppress(Exception):  # what the user's own partitioner or serde takes for no key, its container tells
                found.append(shape.likely(key, bytes_of_key(shape.key, key), self._tasks))
        return found

    async def _page(self, request: StateRequest, token: str) -> StateAnswer:
        slot, _, rest = token.partition(".")
        of_slot, _, first = rest.partition(".")
        if not (slot.isascii() and slot.isdecimal()) or int(slot) not in self._held():
            raise NoAnswer(410, "the container that this range was in is gone: begin it anew")
        try:
            said = base64.urlsafe_b64decode(first.encode()).decode()
        except ValueError:
            raise NoAnswer(410, f"{token!r} is no page") from None
        if not of_slot:
            # The range goes on in this container, which is asked what the one before was asked.
            return await self._range(int(slot), request.operator, said, said)
        limits = [one for one in request.said.split("&") if not one.startswith("page=")]
        return await self._range(int(slot), request.operator, "&".join([f"page={of_slot}", *limits]), said)

    async def _range(self, slot: int, operator: str, said: str, first: str) -> StateAnswer:
        """Return a page of a container, whose next page is in the same one, or the first page of the next."""
        before = {*self._held()[slot]}
        answer = await self._asked(slot)(StateRequest(operator, said))
        if not answer.is_page:
            return answer
        if STORED in parameters_of(said):
            # A task that came or went meanwhile may be in the snapshot or not.
            begins = sorted(before) if before == {*self._held().get(slot, ())} else None
            share = f',"begins":{to_json(begins).decode()},"of":{self._tasks}'
            answer = msgspec.structs.replace(answer, text=answer.text + share)
        if answer.next_page or "key" in parameters_of(first):
            return self._going_on(slot, first, answer)
        following = sorted(one for one in self._held() if one > slot)[:1]
        encoded = base64.urlsafe_b64encode(first.encode()).decode()
        token = "".join(f"{one}..{encoded}" for one in following)
        return msgspec.structs.replace(answer, next_page=token)


def _nowhere(task: int) -> NoAnswer:
    return NoAnswer(503, f"task {task} is in no container now: ask again in a while")
