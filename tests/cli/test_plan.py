"""Planning from the command line: every form of a plan, and what is refused."""

import json

import pytest

from planner.model.plan import Plan


def test_a_plan_is_text(call, spending):
    result = call("plan", "spending.py")
    assert result.exit_code == 0
    assert result.stdout.startswith("spending · exactly once · 2 stages")


def test_a_plan_as_json_comes_back(call, spending):
    assert Plan.from_json(call("plan", "spending.py", "--json").stdout).app == "spending"


@pytest.mark.parametrize(("option", "start"), [("--mermaid", "flowchart LR"), ("--dot", "digraph plan {")])
def test_a_plan_is_drawn_in_other_languages(call, spending, option, start):
    assert call("plan", "spending.py", option).stdout.startswith(start)


@pytest.mark.parametrize(("option", "start"), [("--html", "<!doctype html>"), ("--svg", "<svg")])
def test_a_plan_is_drawn_to_a_file(call, spending, option, start):
    result = call("plan", "spending.py", option, "plan.out")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "wrote plan.out\n")
    assert spending.with_name("plan.out").read_text().lower().startswith(start)


def test_a_file_that_can_not_be_written_is_a_mistake(call, spending):
    result = call("plan", "spending.py", "--svg", "no/such/folder.svg")
    assert (result.exit_code, "can't write no/such/folder.svg" in result.stderr) == (2, True)


def test_the_source_of_a_stage_is_python(call, shouting):
    assert call("plan", "shouting.py", "--source", "stage-1").stdout.startswith("def segment(")


def test_what_is_native_on_spark_is_told_with_the_reasons(call, spending):
    found = call("plan", "spending.py", "--on", "spark")
    assert found.exit_code == 0
    assert found.stdout.startswith("spending · exactly once")
    assert "on Spark\n  stage-1\n    orders" in found.stdout
    assert "  stage-2\n    window" in found.stdout and "folded: it merges what was folded before" in found.stdout
    result = call("plan", "spending.py", "--on", "spark", "--json")
    assert (result.exit_code, "--json and --on" in result.stderr) == (2, True)


def test_what_is_compiled_in_a_live_run_is_told_with_the_reasons(call, spending):
    found = call("plan", "spending.py", "--on", "live")
    assert found.exit_code == 0
    assert "in one process\n  stage-1\n    orders" in found.stdout and ": compiled" not in found.stdout


def test_an_unknown_stage_lists_those_that_there_are(call, spending):
    result = call("plan", "spending.py", "--source", "stage-7")
    assert (result.exit_code, "it has stage-1, stage-2" in result.stderr) == (2, True)


def test_one_form_at_a_time_is_printed(call, spending):
    result = call("plan", "spending.py", "--json", "--dot")
    assert (result.exit_code, "--json and --dot" in result.stderr) == (2, True)


def test_streams_that_exist_have_the_partitions_that_they_have(call, spending):
    call("streams", "produce", "orders", "--partitions", "3", stdin="")
    plan = Plan.from_json(call("plan", "spending.py", "--json").stdout)
    assert plan.stream("orders").partitions == 3


def test_planning_makes_no_data_directory(call, spending):
    call("plan", "spending.py")
    assert not spending.with_name(".samza-dsl").exists()


def test_a_pipeline_that_can_not_be_planned_is_a_mistake(call, write):
    write("unplannable.py", "from samza_dsl import App\napp = App('unplannable')\n")
    result = call("plan", "unplannable.py")
    assert (result.exit_code, "write instead" in result.stderr) == (2, True)


@pytest.mark.ci
def test_a_plan_is_the_same_from_run_to_run(program, spending):
    first, second = (program("plan", "spending.py", "--json").communicate()[0] for _ in range(2))
    assert json.loads(first)["app"] == "spending"
    assert first == second
