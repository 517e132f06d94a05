"""What all tests share: how hard Hypothesis looks, and that in CI nothing is skipped."""

import gc
import os
import secrets
import signal

import pytest
from hypothesis import Phase, settings

from runtime.model.garbage import collector_resting
from tests.kafka.sharing import remove_topics, shared_broker
from tests.scale import SCALE, SCALES, examples
from tests.spark.classes import SOON_UP
from tests.spark.classes import options as spark_options

LATER = SCALES[SCALES.index(SCALE) + 1 :]
LONG = ("tests/spark/", "tests/kafka/", "tests/simulation/", "tests/examples/", "tests/bite/", "tests/test_")
"""Where modules are that take minutes, though they have few tests."""

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.pop("PYTHONHASHSEED", None)  # it holds for this process; those that tests start have seeds of their own

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background, and in whatever is started here
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("SPARK_LAUNCHER_OPTS", " ".join(SOON_UP))  # sessions are short: one takes a third less time so
os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_options())

# At 700 it looks at each example's objects many times, which go by themselves; `frozen` looks behind each module.
gc.set_threshold(20_000, 20, 20)

settings.register_profile(SCALE, max_examples=examples(24, 2_000), deadline=None, print_blob=True)
settings.register_profile("unshrunk", settings.get_profile(SCALE), phases=(Phase.explicit, Phase.generate))
settings.load_profile(SCALE)


def refuse_skip(report):
    """Make a skip a failure: what CI does not run, nobody knows."""
    if "CI" in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: a test may not be skipped in CI ({reason})"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    return refuse_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(collector):
    return refuse_skip((yield))


def module_of(item):
    return item.nodeid.partition("::")[0]


def spread(modules):
    """Return the place of each module: long ones come evenly while the first half of the others do.

    Behind them lie the examples in docstrings, which take no time.
    """
    places = {}
    for is_long, share in ((True, 0.5), (False, 1)):
        alike = [module for module in modules if module.startswith(LONG) is is_long]
        places |= {module: share * number / len(alike) for number, module in enumerate(alike)}
    return places


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Have the collector never look at what is collected, which stays: it took more than half of collecting."""
    with collector_resting():
        found = yield
    gc.freeze()
    return found


def pytest_collection_modifyitems(config, items):
    """Leave to later tiers what is theirs, and spread long modules among the others, but for the last ones.

    What waits for a broker or a session leaves its processor to what does not, and no worker ends alone with it.
    """
    places = spread([*dict.fromkeys(map(module_of, items))])
    items.sort(key=lambda item: places[module_of(item)])
    later = [any(item.get_closest_marker(tier) for tier in LATER) for item in items]
    config.hook.pytest_deselected(items=[item for item, is_later in zip(items, later, strict=True) if is_later])
    items[:] = [item for item, is_later in zip(items, later, strict=True) if not is_later]


@pytest.fixture(scope="module", autouse=True)
def frozen():
    """Have the collector look no more at what lives on after a module, which each full collection would walk."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def kafka_broker_directory(tmp_path_factory):
    """Where the broker of this test session lies, for all processes that share the session."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kafka"


@pytest.fixture(scope="session")
def broker(kafka_broker_directory):
    """A real Kafka broker."""
    with shared_broker(kafka_broker_directory) as running:
        yield running


@pytest.fixture(scope="module")
def prefixes(kafka_broker_directory):
    """The names that topics of a module's tests begin with; these go with it.

    What asks a cluster for all that it has takes longer with each topic, and a session's tests make thousands.
    """
    made = []
    yield made
    remove_topics(kafka_broker_directory, made)


@pytest.fixture
def topics(prefixes):
    """What begins the names of a test's topics, and of its applications: no other test has it."""
    prefixes.append(f"t{secrets.token_hex(6)}")
    return prefixes[-1]
