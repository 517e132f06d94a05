"""What `deploy/` has is true of the command line, and the steps of its image run, without a daemon."""

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib

import pytest
import yaml
from typer.testing import CliRunner

from runtime.watching.exposition import INSTRUMENTS
from samza_dsl import Options
from samza_dsl.cli.main import COMMANDS, commands
from samza_dsl.cli.settings import declared
from samza_dsl.settings.quantities import quantity_of
from tests.faults.processes import wait_until
from tests.source import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES, SYSTEMD = DEPLOY / "kubernetes", DEPLOY / "systemd"
AFTER_DRAIN_MS = 15_000
"""What the commit and the end may take after the drain, before anybody kills."""
UNITS = sorted(file for file in SYSTEMD.iterdir() if file.suffix != ".conf")
PORT = 9464


def instructions():
    """Return the instructions of the Dockerfile, with their arguments."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in "\n".join(lines).replace("\\\n", " ").splitlines()]


def variables(said):
    return dict(one.partition("=")[::2] for one in shlex.split(said))


def of_image(name):
    return [said for instruction, said in instructions() if instruction == name]


def environment_of_image():
    return {name: value for said in of_image("ENV") for name, value in variables(said).items()}


def documents(file):
    return [one for one in yaml.safe_load_all(file.read_text()) if one]


def stateful_set():
    (found,) = documents(KUBERNETES / "statefulset.yaml")
    return found["spec"]


def unit(file):
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read_string(file.read_text())
    return parser


def check_settings(names):
    """Every variable says a setting."""
    ours = {name for name in names if name.startswith("SAMZA_DSL_")}
    assert ours
    unknown = ours - {one.variable for one in declared().values()} - {"SAMZA_DSL_METRICS"}
    assert not unknown


def test_every_variable_that_is_set_says_a_setting():
    check_settings(environment_of_image())
    (container,) = stateful_set()["template"]["spec"]["containers"]
    check_settings(one["name"] for one in container["env"])
    for file in UNITS:
        parser = unit(file)
        if "Service" in parser:
            check_settings(variables(parser["Service"]["Environment"]))


def test_the_image_is_not_root_and_keeps_its_data_on_a_volume():
    (user,), (volume,) = of_image("USER"), of_image("VOLUME")
    number, _, group = user.partition(":")
    assert number.isdecimal() and int(number) > 0
    assert volume == environment_of_image()["SAMZA_DSL_DATA"]
    security = stateful_set()["template"]["spec"]["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (int(number), int(group), int(group))
    (port,) = of_image("EXPOSE")
    assert int(port) == PORT and environment_of_image()["SAMZA_DSL_METRICS"].endswith(f":{port}")


def test_a_pod_runs_as_the_image_does_and_has_time_to_end():
    spec = stateful_set()["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] and spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    (claim,) = stateful_set()["volumeClaimTemplates"]
    assert mounts[claim["metadata"]["name"]] == environment_of_image()["SAMZA_DSL_DATA"]
    assert mounts.keys() == {one["name"] for one in spec["volumes"]} | {claim["metadata"]["name"]}
    said = tomllib.loads((KUBERNETES / "samza-dsl.toml").read_text())
    drain_ms = quantity_of("_ms", said["max_drain_ms"])
    assert spec["terminationGracePeriodSeconds"] * 1_000 >= drain_ms + AFTER_DRAIN_MS
    assert not spec["enableServiceLinks"]


def test_probes_ask_where_a_run_answers():
    (container,) = stateful_set()["template"]["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")}
    assert {name: one["path"] for name, one in paths.items()} == {"liveness": "/livez", "readiness": "/readyz"}
    assert {ports[one["port"]] for one in paths.values()} == {PORT}


def test_the_manifests_are_of_one_application():
    kustomization = documents(KUBERNETES / "kustomization.yaml")[0]
    assert all((KUBERNETES / name).is_file() for name in kustomization["resources"])
    (generated,) = kustomization["configMapGenerator"]
    names = {one["metadata"]["name"] for file in kustomization["resources"] for one in documents(KUBERNETES / file)}
    assert names == {generated["name"]} == {"delays"}
    (scaled,) = documents(KUBERNETES / "keda.yaml")
    target = scaled["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", "delays")
    (pods,) = documents(KUBERNETES / "hpa.yaml")
    assert pods["spec"]["scaleTargetRef"]["name"] == "delays" and scaled["spec"]["scaleTargetRef"]["name"] == "delays"
    assert pods["spec"]["behavior"] == scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    (external,) = pods["spec"]["metrics"]
    (adapter,) = documents(KUBERNETES / "prometheus-adapter.yaml")
    (rule,) = adapter["rules"]["external"]
    assert external["external"]["metric"]["name"] == rule["name"]["as"]
    assert rule["seriesQuery"].partition("{")[0] in {one.exposed_as for one in INSTRUMENTS}
    assert "sum(samza_input_lag{" in rule["metricsQuery"] and "by (app)" in rule["metricsQuery"]
    (service,) = documents(KUBERNETES / "service.yaml")
    selected = stateful_set()["template"]["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= selected
    (disruption,) = documents(KUBERNETES / "disruption.yaml")
    assert disruption["spec"]["selector"]["matchLabels"].items() <= selected


def test_the_settings_in_the_manifests_are_taken(tmp_path):
    text = (KUBERNETES / "samza-dsl.toml").read_text()
    secret = tmp_path / "password"
    secret.write_text("hush hush\n")
    file = tmp_path / "samza-dsl.toml"
    file.write_text(text.replace("/run/secrets/kafka/password", str(secret)))
    shown = CliRunner().invoke(commands, ["--config", str(file), "config"])
    assert shown.exit_code == 0, shown.stderr
    assert re.search(rf"^containers +2 +{re.escape(str(file))}:\d+", shown.stdout, re.M)
    assert "(hidden)" in shown.stdout and "hush" not in shown.output


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kustomize_takes_the_manifests():
    ran = subprocess.run(["kubectl", "kustomize", KUBERNETES], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    kinds = [one["kind"] for one in yaml.safe_load_all(ran.stdout)]
    assert sorted(kinds) == ["ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet"]


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_a_unit_runs_a_command_that_there_is(file, tmp_path):
    parser = unit(file)
    if file.suffix == ".timer":
        assert (SYSTEMD / f"{file.stem}.service").is_file()
    else:
        program, command, *arguments = parser["Service"]["ExecStart"].split()
        assert program.endswith("/bin/samza-dsl") and command in COMMANDS
        shown = CliRunner().invoke(commands, [command, "--help"]).output
        assert all(one in shown for one in arguments if one.startswith("--"))
        assert parser["Service"]["User"] != "root" and parser["Service"]["ProtectSystem"] == "strict"
    if shutil.which("systemd-analyze") is not None:
        copy = tmp_path / file.name.replace("@", "@delays")
        for one in UNITS:
            (tmp_path / one.name.replace("@", "@delays")).write_text(one.read_text())
        ran = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
        wrong = [line for line in ran.stderr.splitlines() if file.stem.partition("@")[0] in line]
        assert [line for line in wrong if "is not executable" not in line] == []


def test_the_user_of_the_units_is_made_by_what_lies_beside_them(tmp_path):
    lines = [line for line in (SYSTEMD / "sysusers.conf").read_text().splitlines() if line and line[0] != "#"]
    ((kind, name, *_),) = map(shlex.split, lines)
    assert kind == "u"
    services = [unit(file)["Service"] for file in UNITS if file.suffix == ".service"]
    assert {one["User"] for one in services} == {one["Group"] for one in services} == {name}
    (kept,) = [line.split() for line in (SYSTEMD / "tmpfiles.conf").read_text().splitlines() if line[0] != "#"]
    assert kept[:2] == ["d", "/var/backups/samza-dsl"] and kept[3:5] == [name, name]
    if shutil.which("systemd-sysusers") is not None:
        (tmp_path / "etc").mkdir()
        how = ["systemd-sysusers", f"--root={tmp_path}", SYSTEMD / "sysusers.conf"]
        ran = subprocess.run(how, capture_output=True, text=True, timeout=60)
        assert ran.returncode == 0, ran.stderr
        assert f"{name}:" in (tmp_path / "etc/passwd").read_text()


def test_prometheus_scrapes_what_is_deployed():
    (said,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    jobs = {one["job_name"]: one for one in said["scrape_configs"]}
    assert all((DEPLOY / "prometheus" / name).is_file() for name in said["rule_files"])
    (targets,) = jobs["samza-dsl"]["static_configs"]
    assert [one.rpartition(":")[2] for one in targets["targets"]] == [str(PORT)]
    # In Kubernetes by the port's name, of all pods with the label that the manifests have.
    rules = jobs["samza-dsl-pods"]["relabel_configs"]
    kept = {tuple(one["source_labels"]): one["regex"] for one in rules if one["action"] == "keep"}
    (container,) = stateful_set()["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert kept["__meta_kubernetes_pod_container_port_name",] == port["name"] and port["containerPort"] == PORT
    labels = stateful_set()["template"]["metadata"]["labels"]
    assert kept["__meta_kubernetes_pod_label_app_kubernetes_io_part_of",] == labels["app.kubernetes.io/part-of"]
    # The adapter tells the series of a namespace's pods by this label, which the Prometheus operator sets by itself.
    (adapter,) = documents(KUBERNETES / "prometheus-adapter.yaml")
    for rule in adapter["rules"]["external"]:
        assert rule["resources"]["overrides"].keys() <= {one.get("target_label") for one in rules}
    (monitor,) = documents(KUBERNETES / "podmonitor.yaml")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"] and endpoint.get("path", "/metrics") == "/metrics"
    for name in ("metrics_path", "path"):
        assert all(job.get(name, "/metrics") == "/metrics" for job in jobs.values())


def test_a_unit_has_time_to_end_and_is_not_started_again_for_a_mistake():
    service = unit(SYSTEMD / "samza-dsl@.service")["Service"]
    assert int(service["TimeoutStopSec"]) * 1_000 >= Options().max_drain_ms + AFTER_DRAIN_MS
    assert (service["KillMode"], service["RestartPreventExitStatus"]) == ("mixed", "2")


APP = """
from samza_dsl import App

app = App("shouting")
app.input("words", value=str).map(str.upper, op_id="loud").send_to(app.output("shouts", value=str))
"""
FOR_ROOT = ("groupadd", "install -d -o")
"""The steps that only root can do: users, and their directory."""


def contents(folder):
    return {
        path: (status.st_mtime_ns, status.st_size)
        for path in sorted(folder.rglob("*"))
        if (status := path.lstat()) is not None
    }


@pytest.mark.ci
def test_the_steps_of_the_image_run_and_what_they_make_writes_nothing_but_its_data(tmp_path):
    """Each instruction does what a daemon would do, below a folder in the place of the root of the file system."""
    root, context = tmp_path / "root", tmp_path / "context"
    context.mkdir()
    (context / "app.py").write_text(APP)
    (context / "requirements.txt").write_text(f"{ROOT}\n")
    below = re.compile(r"(?<![\w.])/(?=(opt|app|tmp|var)\b)")
    here = f"{root}/"
    environment, cwd, command = {}, root, []
    clean = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for instruction, said in instructions():
        said = said if instruction in ("ENTRYPOINT", "CMD") else below.sub(here, said)
        if instruction == "COPY" and not said.startswith("--from"):
            source, target = said.split()
            goal = root / target.removeprefix(here)
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(context, goal) if source == "." else shutil.copy(context / source, goal)
        elif instruction == "RUN" and not said.startswith(FOR_ROOT):
            step = re.sub(r"^python ", f"{sys.executable} ", said)
            ran = subprocess.run(shlex.split(step), env=clean, capture_output=True, text=True, timeout=280)
            assert ran.returncode == 0, ran.stderr
        elif instruction == "ENV":
            environment |= variables(said)
        elif instruction == "WORKDIR":
            cwd = root / said.removeprefix(here)
        elif instruction in ("ENTRYPOINT", "CMD"):
            command += json.loads(said)
    if "metrics" not in declared():
        del environment["SAMZA_DSL_METRICS"]
    else:
        environment["SAMZA_DSL_METRICS"] = ":0"
    # No folder for temporary files: an application without Spark needs none.
    environment |= {"HOME": "/nonexistent", "TMPDIR": str(tmp_path / "absent")}
    program = shutil.which(command[0], path=environment["PATH"])
    assert program is not None and program.startswith(str(root))
    produced = subprocess.run(
        [program, "streams", "produce", "words"], env=environment, cwd=cwd, input='"ahoy"\n', text=True, timeout=60
    )
    assert produced.returncode == 0
    before = contents(root / "app") | contents(root / "opt")
    process = subprocess.Popen([program, *command[1:]], env=environment, cwd=cwd, stderr=subprocess.PIPE, text=True)

    def written():
        shown = subprocess.run(
            [program, "streams", "show", "shouts"], env=environment, cwd=cwd, capture_output=True, text=True, timeout=60
        )
        return "AHOY" in shown.stdout

    try:
        wait_until(written)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert {json.loads(line)["app"] for line in errors.splitlines()} == {"shouting"}
    assert contents(root / "app") | contents(root / "opt") == before
    data = root / environment["SAMZA_DSL_DATA"].removeprefix(here)
    assert (data / "data.mdb").is_file()
