"""Functions that can't do what an operator asks of them are refused where they are passed in."""

from functools import partial

import pytest

from samza_dsl import App, aggregate, count, every, fold, maximum, mean, minimum, top_k, total, tumbling
from tests.planner.refusal import numbers_of, refused


@pytest.fixture
def app():
    return App("mistaken")


@pytest.fixture
def numbers(app):
    return numbers_of(app, key=int)


class Enrich:
    """An object that is a function."""

    def __call__(self, value):
        return value


class EnrichAsync(Enrich):
    async def __call__(self, value):
        return [value]


class OpensNothing(Enrich):
    def open(self):
        pass


class ClosesOne(Enrich):
    def close(self, reason):
        pass


class OpensAndCloses(Enrich):
    def open(self, context):
        yield


class Opens(Enrich):
    def open(self, context):
        pass


def one(value):
    return value


def two(value, other):
    return value


def three(value, other, third):
    return value


def many(value):
    yield value


async def later(value):
    return [value]


async def stream(value):
    yield value


NO_FUNCTION = "which is not a function"
NOT_AWAITED = "got the async function later, which nobody would await"
GENERATOR = "got the generator function many, of which a call only makes a generator"


def test_no_function(numbers):
    with refused(f"filter(...) got 3, {NO_FUNCTION}", "filter(lambda value: ...)"):
        numbers.filter(3)


def test_the_line_is_that_of_the_call_in_a_chain(numbers):
    with refused(f"filter(...) got 3, {NO_FUNCTION}", "lambda"):
        (
            numbers.map(abs)
            .filter(3)  # here
            .map(abs)
        )


def test_wrong_number_of_arguments(numbers):
    with refused("map(...) calls two with 1 argument, and it does not take that", "a function of 1 argument"):
        numbers.map(two)


def test_a_lambda_without_arguments(numbers):
    with refused("flat_map(...) calls the lambda with 1 argument", "a function of 1 argument"):
        numbers.flat_map(lambda: [1])


@pytest.mark.parametrize("method", ["map", "filter", "flat_map"])
@pytest.mark.parametrize("function", [later, partial(later), partial(partial(later)), EnrichAsync().__call__])
def test_an_async_function_where_nobody_awaits(numbers, method, function):
    with refused("which nobody would await", "a plain function, or .async_flat_map(...)"):
        getattr(numbers, method)(function)


@pytest.mark.parametrize("function", [EnrichAsync(), partial(EnrichAsync())])
def test_an_object_with_an_async_call(numbers, function):
    with refused("map(...) got the async function EnrichAsync, which nobody would await", "async_flat_map"):
        numbers.map(function)


@pytest.mark.parametrize("function", [many, partial(many)])
def test_a_generator_function_where_a_value_is_due(numbers, function):
    with refused(f"map(...) {GENERATOR}", "return instead of yield, or .flat_map(...)"):
        numbers.map(function)


def test_a_generator_function_is_always_true(numbers):
    with refused(f"filter(...) {GENERATOR}", "return instead of yield"):
        numbers.filter(many)


def test_a_generator_function_has_no_effect_in_a_sink(numbers):
    with refused(f"sink(...) {GENERATOR}", "return instead of yield"):
        numbers.sink(many)


def test_a_generator_function_is_welcome_where_many_are(app, numbers):
    numbers.flat_map(many).send_to(app.output("out"))
    app.plan()


def test_a_class_instead_of_an_object(numbers):
    with refused("map(...) got the class Enrich, and would only make objects of it", "Enrich(...)"):
        numbers.map(Enrich)


def test_a_type_that_converts_is_no_mistake(app, numbers):
    numbers.map(str).flat_map(list).send_to(app.output("out"))
    app.plan()


def test_open_without_a_context(numbers):
    with refused("its open(...), calls OpensNothing.open with 1 argument", "a function of 1 argument"):
        numbers.map(OpensNothing())


def test_close_with_an_argument(numbers):
    with refused("its close(...), calls ClosesOne.close with no arguments", "a function of no arguments"):
        numbers.map(ClosesOne())


def test_an_open_that_yields(numbers):
    with refused("got an object whose open() yields", "before the yield, close() with what comes after"):
        numbers.map(OpensAndCloses())


def test_open_hidden_in_a_partial(numbers):
    with refused("got a partial, and nobody would call the open() of the object within", "holds the arguments itself"):
        numbers.map(partial(Opens()))


def test_async_flat_map_of_a_plain_function(numbers):
    with refused("async_flat_map(...) got two, which is not async", "async def, or .flat_map(...)"):
        numbers.async_flat_map(two)


@pytest.mark.parametrize("how", [{"init": int}, {"store": "memory"}])
def test_async_flat_map_with_state_that_the_function_does_not_take(numbers, how):
    with refused(
        "async_flat_map(...) calls EnrichAsync with 2 arguments, and it does not", "a function of 2 arguments"
    ):
        numbers.async_flat_map(EnrichAsync(), **how)


def test_async_flat_map_with_a_first_state_that_nothing_makes(numbers):
    with refused("async_flat_map(init=...) got 0, which is not a function", "init=lambda: ..."):
        numbers.async_flat_map(remember, init=0)


def test_async_flat_map_of_an_async_generator(numbers):
    with refused("got the async generator stream", "an async function that returns a list"):
        numbers.async_flat_map(stream)


async def remember(value, context):
    return [value]


def test_partition_by_a_generator(numbers):
    with refused(f"partition_by(...) {GENERATOR}", "return instead of yield"):
        numbers.partition_by(many)


def test_partition_by_a_name(numbers):
    with refused(f"partition_by(...) got 'id', {NO_FUNCTION}", "partition_by(lambda value: ...)"):
        numbers.partition_by("id")


@pytest.mark.parametrize("by", ["hash", 3, None])
def test_partition_by_no_partitioner(numbers, by):
    with refused(f"partition_by(by=...) got {by!r}, {NO_FUNCTION}", "partition_by(by=lambda value, other: ...)"):
        numbers.partition_by(abs, by=by)


def test_a_partitioner_of_one_argument(numbers):
    with refused("partition_by(by=...) calls one with 2 arguments", "a function of 2 arguments"):
        numbers.partition_by(abs, by=one)


def test_branch_by_no_function(numbers):
    with refused(f"branch(...) got 'late', {NO_FUNCTION}", "branch(lambda value: ...)"):
        numbers.branch("late", into=("late", "on_time"))


def test_join_with_one_argument(app, numbers):
    table = app.table("rows", key=int, value=str, broadcast=True)
    with refused("join(with_=...) calls one with 2 arguments", "a function of 2 arguments"):
        numbers.join(table, one, on=abs)


def test_join_on_a_name(app, numbers):
    table = app.table("rows", key=int, value=str, broadcast=True)
    with refused(f"join(on=...) got 'id', {NO_FUNCTION}", "join(on=lambda value: ...)"):
        numbers.join(table, two, on="id")


def test_process_with_one_argument(numbers):
    with refused("process(...) calls one with 2 arguments", "a function of 2 arguments"):
        numbers.process(one)


def test_process_with_a_timer_of_one_argument(numbers):
    with refused("process(on_timer=...) calls one with 2 arguments", "a function of 2 arguments"):
        numbers.process(two, on_timer=one)


def test_process_with_an_init_that_is_a_value(numbers):
    with refused(f"process(init=...) got 0, {NO_FUNCTION}", "process(init=lambda: ...)"):
        numbers.process(two, init=0)


def test_sink_into_nothing(numbers):
    with refused(f"sink(...) got None, {NO_FUNCTION}", "sink(lambda value: ...)"):
        numbers.sink(None)


def test_a_key_of_two_arguments(app):
    with refused("input(key=...) calls two with 1 argument", "a function of 1 argument"):
        app.input("numbers", value=int, key=two)


def test_a_key_of_a_row_that_is_async(app):
    with refused(f"table(key=...) {NOT_AWAITED}", "a plain function"):
        app.table("rows", value=int, key=later)


def test_a_timestamp_by_name(app):
    with refused(f"input(timestamp=...) got 'at', {NO_FUNCTION}", "input(timestamp=lambda value: ...)"):
        app.input("numbers", value=int, timestamp="at")


def test_a_task_of_no_function(app, numbers):
    with refused(f"task(process=...) got 3, {NO_FUNCTION}", "task(process=lambda value, other: ...)"):
        app.task(numbers, 3, op_id="mine")


def test_a_task_of_one_argument(app, numbers):
    with refused("task(process=...) calls the lambda with 2 arguments", "a function of 2 arguments"):
        app.task(numbers, lambda message: None, op_id="mine")


def test_an_async_task_with_a_callback(app, numbers):
    async def process(message, context, callback):
        callback.complete()

    with refused("task(process=...) calls process with 2 arguments", "a function of 2 arguments"):
        app.task(numbers, process, op_id="mine")


def test_a_task_window_that_is_async(app, numbers):
    with refused(f"every(...) {NOT_AWAITED}", "a plain function"):
        app.task(numbers, two, op_id="mine", window=every(later, seconds=1))


def test_a_task_window_of_two_arguments(app, numbers):
    with refused("every(...) calls two with 1 argument", "a function of 1 argument"):
        app.task(numbers, two, op_id="mine", window=every(two, seconds=1))


def test_an_async_wrap(app):
    async def around(function, operator):
        return function

    with refused("wrap(...) got the async function around, which nobody would await", "a plain function"):
        app.wrap(around)


def test_a_wrap_of_one_argument(app):
    with refused("wrap(...) calls one with 2 arguments", "a function of 2 arguments"):
        app.wrap(one)


@pytest.mark.parametrize("aggregation", [mean, total, maximum, minimum])
def test_an_aggregation_of_no_function(aggregation):
    with refused(f"{aggregation.__name__}(...) got 'delay', which is no plain function of 1 argument", "lambda value"):
        aggregation("delay")


def test_an_aggregation_of_an_async_function():
    with refused("mean(...) got <function later", "mean(lambda value: ...)"):
        mean(later)


def test_top_k_by_no_function():
    with refused("top_k(by=...) got 'delay', which is no plain function", "top_k(by=lambda value: ...)"):
        top_k(3, by="delay")


def test_top_k_then_by_no_function():
    with refused("top_k(then=...) got 'name', which is no plain function", "top_k(then=lambda value: ...)"):
        top_k(3, by=abs, then="name")


def test_a_fold_from_a_value():
    with refused("fold(init=...) got 0, which is no plain function of no arguments", "fold(init=lambda: ...)"):
        fold(0, two)


def test_a_fold_by_one_argument():
    with refused("fold(add=...) got <function later", "fold(add=lambda value, other: ...)"):
        fold(int, later)


def test_a_fold_merged_by_one_argument():
    with refused("fold(merge=...) got <built-in function abs>", "fold(merge=lambda value, other: ...)"):
        fold(int, two, merge=abs)


def test_a_fold_finished_by_two_arguments():
    with refused("fold(finish=...) got <function two", "fold(finish=lambda value: ...)"):
        fold(int, two, finish=two)


def test_an_aggregate_of_what_is_none():
    with refused("aggregate(n=...) got <function count", "n=count()"):
        aggregate(dict, n=count)


def test_an_aggregate_into_what_does_not_take_it():
    with refused("aggregate(...) can't make a <class 'tests.planner", "the names that it takes"):
        aggregate(Enrich, n=count())


def test_an_aggregate_of_nothing():
    with refused("aggregate(...) has no named aggregation", "aggregate(Stats, n=count())"):
        aggregate(dict)


def test_a_window_of_a_function_that_makes_aggregations(numbers):
    with refused("window(...) got <function count", "count(), mean(...), fold(...)"):
        numbers.window(tumbling(hours=1), count)
