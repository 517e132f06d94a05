"""Settings are said by a file, a variable or a flag, each overruling the one before; nothing mistyped goes unheeded."""

import json
import logging
import math
import operator
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.errors import SamzaError
from samza_dsl.cli import run
from samza_dsl.cli.errors import WHERE_TYPED, told
from samza_dsl.cli.settings import declared
from samza_dsl.settings import logs
from samza_dsl.settings.logs import LogHandler, LogSettings, line_of
from samza_dsl.settings.quantities import quantity_of, said_of
from samza_dsl.settings.sources import SettingsFile

SECRET = "open sesame"


@pytest.fixture
def shown(call, shouting):
    """The settings of the application: value and place by name."""

    def shown(*flags: str, target: str = "shouting.py") -> dict[str, tuple[str, str]]:
        result = call("config", target, *flags)
        assert result.exit_code == 0, result.stderr
        lines = result.stdout.splitlines()
        value, place = lines[0].index("value"), lines[0].index("said by")
        return {line.split()[0]: (line[value:place].strip(), line[place:]) for line in lines[1:]}

    return shown


def test_a_flag_overrules_a_variable_and_that_a_file_and_that_the_code(shown, write, shouting, monkeypatch):
    shouting.write_text(
        shouting.read_text()
        .replace('App("shouting")', 'App("shouting", Options(max_drain_ms=9_000))')
        .replace("import App", "import App, Options")
    )
    assert shown()["max_drain_ms"] == ("9s", "code")
    assert shown()["max_in_flight"] == ("1000", "default")
    write("samza-dsl.toml", 'max_drain_ms = "8s"\n\n[apps.other]\nmax_drain_ms = 1\n')
    assert shown()["max_drain_ms"] == ("8s", "samza-dsl.toml:1")
    write("samza-dsl.toml", 'max_drain_ms = "8s"\n\n[apps.shouting]\nmax_drain_ms = 7_000\n')
    assert shown()["max_drain_ms"] == ("7s", "samza-dsl.toml:4")
    monkeypatch.setenv("SAMZA_DSL_MAX_DRAIN_MS", "6s")
    assert shown()["max_drain_ms"] == ("6s", "SAMZA_DSL_MAX_DRAIN_MS")
    assert shown("--max-drain-ms", "5s")["max_drain_ms"] == ("5s", "--max-drain-ms")


def test_without_an_application_what_holds_for_all_is_shown(call, write):
    write("samza-dsl.toml", "threads = 3\n[apps.shouting]\nthreads = 4\n")
    told = [line.split() for line in call("config").stdout.splitlines()]
    assert ["threads", "3", "samza-dsl.toml:1"] in told and ["max_drain_ms", "30s", "default"] in told


def test_a_run_has_what_the_settings_say(call, write, shouting, monkeypatch):
    write("words.jsonl", '"ahoy"\n')
    write("samza-dsl.toml", 'data = "there"\nbatch_records = 3\n[apps.shouting.bind]\nwords = "words.jsonl"\n')
    monkeypatch.setenv("SAMZA_DSL_MAX_IN_FLIGHT", "5")
    assert call("run", "shouting.py", "--commit-interval-ms", "1.5s").exit_code == 0
    told = json.loads(call("job", "show", "shouting", "--json").stdout)
    assert told["environment"] == "there"
    options = told["options"]
    assert (options["batch_records"], options["max_in_flight"], options["commit_interval_ms"]) == (3, 5, 1_500)
    assert call("streams", "show", "shouts").stdout.count("AHOY") == 1


def test_names_of_a_table_are_taken_together(shown, write, monkeypatch):
    write("samza-dsl.toml", 'bind = {words = "a.jsonl"}\n[apps.shouting]\nbind = {shouts = "b.jsonl"}\n')
    assert shown()["bind"][0] == "words=a.jsonl shouts=b.jsonl"
    monkeypatch.setenv("SAMZA_DSL_BIND", "words=c.jsonl")
    assert shown("--bind", "shouts=d.jsonl")["bind"][0] == "words=c.jsonl shouts=d.jsonl"


def test_a_project_has_its_settings_in_pyproject_and_a_file_can_be_named(shown, write, call, shouting):
    write("pyproject.toml", '[project]\nname = "x"\n\n[tool.samza-dsl]\nthreads = 3\n')
    assert shown()["threads"] == ("3", "pyproject.toml:5")
    write("other.toml", "threads = 4\n")
    assert "other.toml:1" in call("--config", "other.toml", "config", "shouting.py").stdout
    assert call("--config", "absent.toml", "config").exit_code == 2


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_inflight = 3", ["samza-dsl.toml:1", "no setting 'max_inflight'", "'max_in_flight'"]),
        ("[apps.shouting]\ntreads = 3", ["samza-dsl.toml:2", "'threads'"]),
        ('threads = "4"', ["samza-dsl.toml:1: threads can't be '4': write a whole number"]),
        ("threads = -1", ["samza-dsl.toml:1", "threads=-1"]),
        ("threads = true", ["samza-dsl.toml:1", "whole number"]),
        ("containers = 0", ["samza-dsl.toml:1: containers can't be 0: write a whole number of at least 1"]),
        (
            "[apps.shouting]\nstandby = -1",
            ["samza-dsl.toml:2: standby can't be -1: write a whole number of at least 0"],
        ),
        ("inline = 1", ["samza-dsl.toml:1: inline can't be 1: write true or false"]),
        ('log_level = "loud"', ["samza-dsl.toml:1", "write debug or info or warning or error"]),
        ("bind = 3", ["samza-dsl.toml:1: bind can't be 3: write a table of names and places"]),
        ("metrics = 9464", ["samza-dsl.toml:1: metrics can't be 9464: write text"]),
        ("[aps.shouting]\nthreads = 1", ["samza-dsl.toml:1", "did you mean 'apps'"]),
        ('max_drain_ms = "9 weeks"', ["samza-dsl.toml:1", "30s"]),
        ('max_drain_ms = "0.5ms"', ["samza-dsl.toml:1", "whole number of ms"]),
        ('commit_by = "thread"', ["samza-dsl.toml:1", "commit_by"]),
        ("from_start = true", ["samza-dsl.toml:1", "--from-start", "SAMZA_DSL_FROM_START"]),
        ('[kafka]\nsasl_plain_password = "open sesame"', ["samza-dsl.toml:2", "sasl_plain_password_file"]),
        ("threads = ", ["samza-dsl.toml", "TOML"]),
        ("apps = 3", ["samza-dsl.toml:1", "[apps.NAME]"]),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_line(call, shouting, write, text, told):
    write("samza-dsl.toml", text + "\n")
    result = call("run", "shouting.py", "--until-now")
    assert result.exit_code == 2
    assert [word for word in told if word not in result.stderr] == []
    assert SECRET not in result.output


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("CONTAINERS", "x", "containers can't be 'x': write a whole number of at least 1"),
        ("STANDBY", "-1", "standby can't be -1: write a whole number of at least 0"),
        ("READY_LAG", "1.5", "ready_lag can't be '1.5': write a whole number of at least 0"),
        ("UNTIL_NOW", "maybe", "until_now can't be 'maybe': write true or false"),
        ("LOG_FORMAT", "xml", "log_format can't be 'xml': write text or json"),
        ("MAX_DRAIN_MS", "9 weeks", "30s"),
    ],
)
def test_what_a_variable_or_a_flag_cannot_mean_is_refused_with_its_name(
    call, shouting, monkeypatch, variable, value, told
):
    name = "SAMZA_DSL_" + variable
    with monkeypatch.context() as during:
        during.setenv(name, value)
        result = call("run", "shouting.py")
    assert result.exit_code == 2 and name in result.stderr and told in result.stderr
    flag = "--" + variable.lower().replace("_", "-")
    if variable not in ("UNTIL_NOW", "MAX_DRAIN_MS"):  # one has no value, and the other is no flag
        result = call("run", "shouting.py", flag, value)
        assert result.exit_code == 2 and flag in result.stderr


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("kafka://", "'kafka://' names no Kafka cluster: write kafka://host:9092"),
        ("broker:9092", "'broker:9092' names no Kafka cluster: write kafka://host:9092"),
        ("kafka://one:9092/topic", "'kafka://one:9092/topic' names a topic"),
        ("kafka://one:9092,two:port", "'kafka://one:9092,two:port': 'two:port' is no broker: write kafka://host:9092"),
        ("kafka://me:secret@one:9092", "no user or password"),
        ("kafka://one:9092?prefx=a", "says prefix="),
    ],
)
@pytest.mark.parametrize("command", [["run", "shouting.py"], ["streams", "list"], ["kafka", "topics", "shouting.py"]])
def test_an_address_that_names_no_cluster_is_a_mistake(call, shouting, command, address, told):
    result = call(*command, "--environment", address)
    assert result.exit_code == 2 and told in result.stderr and "any" not in result.stderr
    assert "secret" not in result.output


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("bogus = 3", ["samza-dsl.toml:2: ", "no option 'bogus'"]),
        ('sasl_plain_passwrd_file = "pw"', ["samza-dsl.toml:2: ", "did you mean 'sasl_plain_password'?"]),
        ('security_protocol = "SSLL"', ["one of PLAINTEXT, SSL", "security_protocol is said by samza-dsl.toml:2"]),
        ('sasl_mechanism = "FOO"\nsecurity_protocol = "SASL_SSL"', ["one of PLAIN, ", "is said by samza-dsl.toml:2"]),
        ("request_timeout_ms = -1", ["whole number of milliseconds", "is said by samza-dsl.toml:2"]),
        ("request_timeout_ms = true", ["whole number of milliseconds", "is said by samza-dsl.toml:2"]),
        ('request_timeout_ms = "3 weeks"', ["samza-dsl.toml:2: request_timeout_ms can't be '3 weeks'"]),
    ],
)
def test_an_option_that_no_client_of_kafka_has_is_a_mistake(call, shouting, write, said, told):
    write("samza-dsl.toml", f"[kafka]\n{said}\n")
    result = call("run", "shouting.py", "--environment", "kafka://127.0.0.1:1")
    assert result.exit_code == 2 and [word for word in told if word not in result.stderr] == []
    assert result.stderr.count("samza-dsl.toml") == 1


def test_a_client_of_kafka_takes_times_with_units(call, shouting, write, monkeypatch):
    requests = []
    monkeypatch.setattr(run, "served", lambda app, request: requests.append(request))
    write("samza-dsl.toml", '[kafka]\nrequest_timeout_ms = "30s"\n')
    monkeypatch.setenv("SAMZA_DSL_KAFKA_RETRY_BACKOFF_MS", "250")
    result = call("run", "shouting.py", "--environment", "kafka://host:9092")
    assert result.exit_code == 0, result.stderr
    assert requests[0].environment.options == {"request_timeout_ms": 30_000, "retry_backoff_ms": 250}


def test_a_variable_that_says_nothing_is_refused_but_for_those_of_others(call, shouting, monkeypatch):
    monkeypatch.setenv("SAMZA_DSL_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("SAMZA_DSL_PORT_9464_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("SAMZA_DSL_KAFKA", "3.9.1")  # which says what `kafka start` starts
    assert call("kafka", "status").stderr == ""
    assert call("config", "shouting.py").exit_code == 0
    monkeypatch.setenv("SAMZA_DSL_TREADS", "3")
    result = call("plan", "shouting.py")
    assert result.exit_code == 2 and "SAMZA_DSL_THREADS" in result.stderr


@pytest.mark.parametrize(
    ("text", "variable", "told"),
    [
        ("[kafka]\nclient_di = 'x'", "", "samza-dsl.toml:2: a Kafka client has no option 'client_di'"),
        (
            "[apps.other.kafka]\ngroup_id = 'x'",
            "",
            "samza-dsl.toml:2: the option 'group_id' of Kafka clients",
        ),
        ("kafka = 3", "", "samza-dsl.toml:1: kafka is no table: write [kafka]"),
        ("[apps.other]\nkafka = 'x'", "", "samza-dsl.toml:2: kafka is no table: write [apps.other.kafka]"),
        ("", "CLIENT_DI", "SAMZA_DSL_KAFKA_CLIENT_DI: a Kafka client has no option 'client_di'"),
    ],
)
@pytest.mark.parametrize("command", [["config"], ["run", "shouting.py"], ["streams", "list"]])
def test_an_option_of_no_client_is_a_mistake_where_no_cluster_is_used(
    call, shouting, write, monkeypatch, text, variable, told, command
):
    write("samza-dsl.toml", f"{text}\n")
    if variable:
        monkeypatch.setenv(f"SAMZA_DSL_KAFKA_{variable}", SECRET)
    result = call(*command)
    assert result.exit_code == 2 and told in result.stderr and SECRET not in result.stderr


def test_a_service_that_is_called_like_the_variables_of_kafka_is_none_of_ours(call, shouting, monkeypatch):
    for name in ("SERVICE_HOST", "SERVICE_PORT", "PORT_9092_TCP", "PORT"):
        monkeypatch.setenv(f"SAMZA_DSL_KAFKA_{name}", "tcp://10.0.0.1:9092")
    result = call("config", "shouting.py")
    assert result.exit_code == 0 and "10.0.0.1" not in result.stdout


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"THREADS": "-2"}, "SAMZA_DSL_THREADS: threads=-2"),
        ({"METRICS_TO": "a b"}, "SAMZA_DSL_METRICS_TO: 'a b'"),
        ({"ELASTICITY": "3"}, "SAMZA_DSL_ELASTICITY: elasticity=3 in Options(...): 3 is no power of two"),
        ({"BLOCKING_TIMEOUT_MS": "5s", "THREADS": "0"}, "SAMZA_DSL_BLOCKING_TIMEOUT_MS, SAMZA_DSL_THREADS: blocking"),
        ({"BLOCKING_TIMEOUT_MS": "5s"}, "SAMZA_DSL_BLOCKING_TIMEOUT_MS: blocking_timeout_ms"),
    ],
)
@pytest.mark.parametrize("command", ["config", "plan", "run"])
def test_of_many_options_the_one_that_is_wrong_is_named(call, shouting, write, monkeypatch, wrong, told, command):
    shouting.write_text(
        shouting.read_text()
        .replace('App("shouting")', 'App("shouting", Options(threads=1))' if len(wrong) > 1 else 'App("shouting")')
        .replace("import App", "import App, Options")
    )
    write("samza-dsl.toml", "batch_records = 3\ncache_entries = 4\n[apps.shouting]\ncommit_interval_ms = 4\n")
    for name, value in wrong.items():
        monkeypatch.setenv(f"SAMZA_DSL_{name}", value)
    result = call(command, "shouting.py")
    assert result.exit_code == 2 and f"error: {told}" in result.stderr


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('environment = "redis://x"', "'redis://x' is said by samza-dsl.toml:1"),
        ('metrics_token_file = "none"\nmetrics = ":0"', "'none' is said by samza-dsl.toml:1"),
    ],
)
def test_an_error_says_where_a_text_that_nobody_typed_comes_from(call, shouting, write, said, told):
    write("samza-dsl.toml", f"{said}\n")
    result = call("run", "shouting.py", "--until-now")
    assert result.exit_code and told in result.stderr


def test_an_error_says_where_a_flag_that_nobody_typed_comes_from(call, shouting, write):
    write("samza-dsl.toml", 'placement = "round_robin"\n')
    result = call("run", "shouting.py")
    assert result.exit_code == 2 and "--placement is said by samza-dsl.toml:1" in result.stderr


def test_an_error_that_names_commands_says_which_flag_of_this_one_they_need(call, write):
    by = "app.input('words').partition_by(len, op_id='by').scan(lambda n, w: 1, op_id='n')"
    write("app.py", f"from samza_dsl import App\n\napp = App('a')\n{by}.send_to(app.output('numbers'))\n")
    write("words.jsonl", '"a"\n')
    assert call("run", "app.py", "--data", "here", "--bind", "words=words.jsonl").exit_code == 0
    found = call("streams", "delete", "a-by", "--data", "here")
    assert "each of these commands takes --data here, as this one did" in found.stderr
    write("samza-dsl.toml", 'data = "here"\n')
    found = call("streams", "delete", "a-by")
    assert "samza-dsl reset" in found.stderr and "each of these commands" not in found.stderr


def test_what_an_error_says_whole_is_not_said_twice(capsys):
    place = "--environment kafka://127.0.0.1:9092"
    for said, is_added in (
        (f"to go on: samza-dsl state forget a op {place}; or else", False),
        ("samza-dsl reset a", True),
    ):
        token = WHERE_TYPED.set(place)
        with pytest.raises(typer.Exit), told():
            raise SamzaError(said)
        WHERE_TYPED.reset(token)
        assert (f"each of these commands takes {place}" in capsys.readouterr().err) == is_added


@pytest.mark.parametrize("by", ["variable", "file", "variable of a file"])
def test_a_secret_is_used_and_shown_nowhere(call, shouting, write, monkeypatch, by):
    write("secret", SECRET + "\n")
    if by == "file":
        write("samza-dsl.toml", '[kafka]\nsasl_plain_password_file = "secret"\n')
    elif by == "variable":
        monkeypatch.setenv("SAMZA_DSL_KAFKA_SASL_PLAIN_PASSWORD", SECRET)
    else:
        monkeypatch.setenv("SAMZA_DSL_KAFKA_SASL_PLAIN_PASSWORD_FILE", "secret")
    config = call("config", "shouting.py")
    assert "kafka.sasl_plain_password" in config.stdout and "(hidden)" in config.stdout
    requests = []
    monkeypatch.setattr(run, "served", lambda app, request: requests.append(request))
    result = call("run", "shouting.py", "--environment", "kafka://host:9092")
    assert result.exit_code == 0, result.stderr
    assert requests[0].environment.options == {"sasl_plain_password": SECRET}
    assert SECRET not in config.output + result.output + repr(requests)


def test_a_secret_that_someone_logs_is_hidden(call, write, monkeypatch):
    monkeypatch.setenv("SAMZA_DSL_KAFKA_SASL_PLAIN_PASSWORD", 'quo"ted secret')
    write(
        "careless.py",
        """
        import logging, os
        from samza_dsl import App

        def up(word):
            logging.error("it is %s", os.environ["SAMZA_DSL_KAFKA_SASL_PLAIN_PASSWORD"])
            return word.upper()

        app = App("careless")
        app.input("words", value=str).map(up, op_id="loud").send_to(app.output("shouts", value=str))
        """,
    )
    call("streams", "produce", "words", stdin='"ahoy"\n')
    for form in ("text", "json"):
        told = call("run", "careless.py", "--until-now", "--from-start", "--state", "reset", "--log-format", form)
        assert told.exit_code == 0, told.stderr
        assert "it is ***" in told.stderr and "secret" not in told.stderr


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("secret", ['quo"ted secret', "back\\slash\nof two lines", "12345678"])
def test_a_secret_is_hidden_wherever_it_stands_in_a_line(form, secret, monkeypatch):
    monkeypatch.setattr(logs, "_hidden", set())
    logs.hide(secret)
    extra = {"password": secret, secret: 1, 7: f"a {secret}", "pin": int(secret) if secret.isdigit() else 0}
    try:
        raise ValueError(f"it is {secret}")
    except ValueError:
        record = logging.getLogger("mine").makeRecord(
            "mine", 40, "file", 1, "of %s", (secret,), sys.exc_info(), extra=extra
        )
    said = line_of(record, LogSettings(form, "warning", {"app": secret}))
    words = said if form == "text" else str(json.loads(said))
    for one in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]):
        assert one not in said and one not in words
    assert said.count("***") == 7 - (not secret.isdigit()) and "\n" not in said


@pytest.mark.parametrize("by", ["file", "variable", "flag"])
@pytest.mark.parametrize(
    "url",
    [
        "postgres://ann:hunter22@db/x?table=shouts",
        "postgress://ann:hunter22@db/x",
        "https://ann:hunter22@host/x.jsonl",
        "https://host/x.jsonl?sig=hunter22",
        "rolling:s3://ann:hunter22@lake/x?kind=csv",
        "redis://:hunter22@host/0?key=id",
        "sqlite:///x.db?password=hunter22",
        "postgres://ann:hunter/22@db/x",
    ],
)
def test_a_secret_in_a_url_is_shown_nowhere(call, shouting, write, monkeypatch, url, by):
    said = ()
    if by == "file":
        write("samza-dsl.toml", f'bind = {{ shouts = "{url}" }}\n')
    elif by == "variable":
        monkeypatch.setenv("SAMZA_DSL_BIND", f"shouts={url}")
    else:
        said = ("--bind", f"shouts={url}")
    results = [call("plan", "shouting.py"), call("config", "shouting.py")]
    monkeypatch.setattr(run, "served", lambda app, request: logging.getLogger("x").error("can't reach %s", url))
    results.append(call("run", "shouting.py", "--until-now", *said))
    for shown_by in results:
        assert "hunter" not in shown_by.output + shown_by.stderr
    if by == "file":
        assert "(hidden)" in results[1].stdout


@pytest.mark.parametrize(
    ("url", "shown_as"),
    [
        ("postgres://shouts@db/shouts?table=shouts", "postgres://shouts@db/shouts?table=shouts"),
        ("postgres://@db/x?table=a", "postgres://@db/x?table=a"),
        ("postgres://a:a@db/a?table=a", "postgres://a:(hidden)@db/a?table=a"),
        ("s3://key@lake/x", "s3://key@lake/x"),
    ],
)
def test_what_is_no_secret_is_shown(shown, shouting, write, url, shown_as):
    write("samza-dsl.toml", f'bind = {{ shouts = "{url}" }}\n')
    assert shown()["bind"][0] == f"shouts={shown_as}"


def test_every_line_of_the_log_says_where_it_comes_from(call, write):
    write(
        "logging_app.py",
        """
        import logging
        from samza_dsl import App

        log = logging.getLogger("mine")
        def up(word):
            log.warning("a line\\n%s", word, extra={"size": len(word)})
            return word.upper()

        async def ask(word):
            log.info("asked")
            return [word]

        def keep(word, context):
            log.warning("kept")
            return []

        app = App("talking")
        words = app.input("words", value=str).map(up, op_id="loud")
        words.async_flat_map(ask, op_id="ask").partition_by(len, partitions=1, op_id="by-length").process(
            keep, op_id="keep").send_to(app.output("kept", value=str))
        """,
    )
    call("streams", "produce", "words", stdin='"ahoy"\n')
    watched = ("--metrics", "127.0.0.1:0", "--replica", "copy")
    told = call("run", "logging_app.py", "--until-now", "--log-format", "json", "--log-level", "info", *watched)
    assert told.exit_code == 0, told.stderr
    lines = [json.loads(line) for line in told.stderr.splitlines()]
    assert {line["app"] for line in lines} == {"talking"} and all("time" in line for line in lines)
    assert {line.get("container") for line in lines} == {"0"}, "the server of its metrics and the copier, too"
    mine = {line["message"]: line for line in lines if line["logger"] == "mine"}
    loud, asked, kept = mine['a line\n"ahoy"'], mine["asked"], mine["kept"]
    assert (loud["task"], loud["operator"], loud["size"], loud["level"]) == (0, "loud", 6, "warning")
    assert (asked["task"], asked["operator"]) == (0, "ask")
    assert (kept["task"], kept["operator"]) == (0, "keep")


@pytest.mark.parametrize(("flags", "container"), [((), "0"), (("--containers", "2"), "starter")])
def test_the_line_of_a_failure_says_which_run_has_failed(program, call, shouting, flags, container):
    shouting.write_text(shouting.read_text().replace("str.upper", "lambda word: int(word)"))
    call("streams", "produce", "words", "--partitions", "2", stdin='"ahoy"\n')
    process = program("run", "shouting.py", "--until-now", "--log-format", "json", *flags)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 1, told
    last = json.loads(told.splitlines()[-1])
    assert (last["level"], last["app"], last["container"]) == ("error", "shouting", container)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_failure_is_told_in_the_form_of_the_log(call, shouting, write, form):
    write("samza-dsl.toml", f'log_format = "{form}"\n')
    shouting.write_text(shouting.read_text().replace("str.upper", "lambda word: int(word)"))
    call("streams", "produce", "words", stdin='"ahoy"\n')
    told = call("run", "shouting.py", "--until-now")
    assert told.exit_code == 1
    if form == "json":
        *_, last = map(json.loads, told.stderr.splitlines())
        assert last["level"] == "error" and "in your program:\n" in last["message"] and "int(word)" in last["message"]
    else:
        assert "error: " in told.stderr and "\nin your program:\n" in told.stderr


@pytest.mark.parametrize("text", ["app = App(", "import nothing_such", "app = 1 / 0", "app = 1"])
def test_a_program_that_can_not_be_read_is_told_in_the_form_of_the_log(call, write, text):
    write("wrong.py", text + "\n")
    told = call("run", "wrong.py", "--log-format", "json")
    (line,) = map(json.loads, told.stderr.splitlines())
    assert told.exit_code == 2 and line["level"] == "error" and "app" not in line


def test_a_fault_of_the_library_is_told_whole_in_the_form_of_the_log(call, shouting, monkeypatch):
    # Nobody's function is on the stack of what it raises.
    monkeypatch.setattr(run, "served", operator.truediv)
    told = call("run", "shouting.py", "--log-format", "json")
    (line,) = map(json.loads, told.stderr.splitlines())
    assert told.exit_code == 1 and line["message"].startswith("TypeError: unsupported operand")
    assert line["error"].startswith("Traceback (most recent call last):\n")
    assert isinstance(call("run", "shouting.py").exception, TypeError)


EXTRA = st.dictionaries(st.sampled_from(["time", "app", "error", "size"]), st.floats() | st.text(), min_size=1)


@given(EXTRA, st.text())
def test_what_a_line_says_of_itself_stays_and_every_line_is_json(extra, text):
    record = logging.getLogger("mine").makeRecord("mine", 30, "file", 1, "%s", (text,), None, extra=extra)
    said = line_of(record, LogSettings("json", "warning", {"app": "ours"}))
    line = json.loads(said, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert "\n" not in said and "\r" not in said
    assert (line["app"], line["logger"], line["message"]) == ("ours", "mine", text)
    for name, value in extra.items():
        found = line[name if name == "size" else f"extra.{name}"]
        assert found == (value if isinstance(value, str) or math.isfinite(value) else str(value))


def test_warnings_of_python_are_lines_of_the_log(call, write):
    write(
        "warned.py",
        """
        import warnings
        from samza_dsl import App

        def up(word):
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn("a\\nwarning")
            return word.upper()

        app = App("warned")
        app.input("words", value=str).map(up, op_id="loud").send_to(app.output("shouts", value=str))
        """,
    )
    call("streams", "produce", "words", stdin='"ahoy"\n')
    told = call("run", "warned.py", "--until-now", "--log-format", "json")
    (line,) = [line for line in map(json.loads, told.stderr.splitlines()) if "a\nwarning" in line["message"]]
    assert (line["logger"], line["operator"], line["level"]) == ("py.warnings", "loud", "warning")


def test_a_line_is_written_at_once_so_that_those_of_containers_are_not_mixed(monkeypatch):
    written = []
    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=written.append, flush=lambda: None))
    handler = LogHandler(LogSettings("json", "warning", {}))
    for text in ("one", "two"):
        handler.emit(logging.getLogger("mine").makeRecord("mine", 30, "file", 1, text, (), None))
    assert [json.loads(one)["message"] for one in written] == ["one", "two"] and written[0].endswith("\n")


def test_containers_log_as_the_command_does(call, write, program):
    write(
        "shared.py",
        """
        import logging
        from samza_dsl import App

        def up(word):
            logging.warning("seen")
            return word.upper()

        app = App("shared")
        app.input("words", value=str).map(up, op_id="loud").send_to(app.output("shouts", value=str))
        """,
    )
    call("streams", "produce", "words", "--partitions", "2", stdin='"ahoy"\n')
    process = program(
        "run", "shared.py", "--until-now", "--containers", "2", "--log-format", "json", "--log-level", "info"
    )
    _, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    containers = {json.loads(line).get("container") for line in told.splitlines() if line.startswith("{")}
    assert {"starter"} < containers <= {"starter", "0.0", "1.0"}
    (line,) = [json.loads(line) for line in told.splitlines() if '"seen"' in line]
    assert (line["app"], line["operator"]) == ("shared", "loud")
    assert line["container"] in ("0.0", "1.0") and line["task"] in (0, 1)


def test_every_setting_has_one_variable_and_a_kind():
    known = declared()
    assert len({one.variable for one in known.values()}) == len(known) > 25
    assert {"data", "containers", "max_drain_ms", "log_format"} <= known.keys()


@given(st.integers(0, 10**15), st.sampled_from(["max_ms", "max_bytes"]))
def test_a_quantity_is_read_as_it_is_shown(number, name):
    suffix = name.removeprefix("max")
    assert quantity_of(suffix, said_of(name, number)) == number
    assert quantity_of(suffix, str(number)) == number


KEYS = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
VALUES = st.sampled_from(
    ["1", '"text"', "true", '"""\nfake = 1\n"""', "[\n  1,\n  # c\n  2,\n]", "'''\n[apps.fake]\n'''"]
)


@given(st.dictionaries(KEYS, st.tuples(VALUES, st.integers(0, 2)), min_size=1))
def test_a_key_is_found_on_the_line_where_it_begins(pairs):
    lines, places = ["# settings", "[tool.samza-dsl]"], {}
    for key, (value, blanks) in pairs.items():
        places[key] = len(lines) + 1
        lines += f"{key} = {value}".split("\n") + [""] * blanks
    file = SettingsFile(Path("p.toml"), "\n".join(lines) + "\n", ("tool", "samza-dsl"))
    assert {key: file.where(key) for key in places} == {key: f"p.toml:{line}" for key, line in places.items()}
