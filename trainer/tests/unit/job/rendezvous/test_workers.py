# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers that a launcher starts: specs, commands, and cancellation."""

from __future__ import annotations

import base64
import json
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from rdm_core.errors import TrainerError
from rdm_job.rendezvous.workers import SPECS, Workers, WorkerSpec, job_name, read_spec
from tests.waiting import wait_until

SECRET = "a secret of tests, long enough"
COMMAND = ["train", "it's a file.yaml", "data.blend=[a, b]"]
# Writes its arguments, its environment and the spec to a log, and prints what sbatch prints.
SERVICE = """\
import json, os, sys
log, fails, *words = sys.argv[1:]
spec = open(words[-1]).read() if os.path.exists(words[-1]) else ""
with open(log, "a") as file:
    print(json.dumps({"words": words, "environment": dict(os.environ), "spec": spec}), file=file)
if fails in words[-1]:
    sys.exit("no such partition")
print("Submitted batch job", 17 + len(open(log).readlines()))
"""


class Service:
    """The commands of a batch service.

    Args:
        folder: The directory of its program and log.
        fails: The text that makes its commands fail.
    """

    def __init__(self, folder: Path, fails: str = "never") -> None:
        self._log, program = folder / "log", folder / "service.py"
        program.write_text(SERVICE)
        self._command = (sys.executable, str(program), str(self._log), fails)
        self.submit = (*self._command, "submit", "{spec}")
        self.cancel = (*self._command, "cancel", "{id}")

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The recorded calls."""
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    @property
    def words(self) -> list[list[str]]:
        """The arguments of each call, paths without their directories."""
        return [[Path(word).name for word in call["words"]] for call in self.calls]


def _workers(
    folder: Path,
    template: str | Path,
    shown: list[str] | None = None,
    *,
    submit: tuple[str, ...] = ("true", "{spec}"),
    cancel: tuple[str, ...] = (),
    **values: Any,
) -> Workers:
    if isinstance(template, str):
        path = folder / "worker.yaml.j2"
        path.write_text(template)
        template = path
    variables = {
        "MASTER_ADDR": "10.0.0.1",
        "RDZV_PORT": 29501,
        "RDZV_ID": "Alpaca 17",
        "NUM_NODES": 4,
        "GPUS_PER_NODE": 8,
        "COMMAND": COMMAND,
        "JOB_DIR": str(folder),
    }
    own = {key: values.pop(key) for key in list(values) if key in variables}
    spec = WorkerSpec(template, submit, cancel, values)
    show = (lambda line: None) if shown is None else shown.append
    return Workers(spec, folder / "workers", SECRET, variables | own, show)


def _submitted(workers: Workers, service: Service, count: int) -> None:
    wait_until("all are submitted", lambda: len(service.calls) >= count or workers.problem)


def test_each_worker_has_a_spec_where_the_template_uses_its_rank(tmp_path: Path) -> None:
    service = Service(tmp_path)
    template = "{{ NODE_RANK }} of {{ NUM_NODES }} at {{ MASTER_ADDR }}, {{ GPUS_PER_NODE }} {{ image }}\n"
    shown: list[str] = []
    workers = _workers(tmp_path, template, shown, submit=service.submit, image="a:1")
    workers.start()
    _submitted(workers, service, 3)
    workers.leave()
    assert [call["spec"] for call in service.calls] == [
        f"{rank} of 4 at 10.0.0.1, 8 a:1\n" for rank in (1, 2, 3)
    ]
    assert service.words == [["submit", f"worker-{rank}.yaml"] for rank in (1, 2, 3)]
    assert "Worker 2 is submitted: Submitted batch job 19." in shown


def test_one_spec_is_for_all_workers_where_the_template_does_not(tmp_path: Path) -> None:
    service = Service(tmp_path)
    workers = _workers(tmp_path, "{{ NUM_NODES - 1 }} workers", submit=service.submit)
    workers.start()
    _submitted(workers, service, 1)
    workers.leave()
    assert [call["spec"] for call in service.calls] == ["3 workers"]


def test_the_secret_is_in_files_for_the_owner_alone_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDZV_SECRET", SECRET)
    monkeypatch.setenv("ROLE", "launcher")
    service, shown = Service(tmp_path), list[str]()
    template = "{{ RDZV_SECRET_FILE }}\n{{ RDZV_SECRET_ENV_FILE }}\n{{ RDZV_SECRET_NAME }}"
    workers = _workers(tmp_path, template, shown, submit=(*service.submit, "{secret}"))
    workers.start()
    _submitted(workers, service, 1)
    (call,) = service.calls
    # Here the spec precedes the Secret's manifest.
    plain, variables, name = Path(call["words"][1]).read_text().split("\n")
    manifest = json.loads(Path(call["words"][2]).read_text())
    assert Path(plain).read_text() == f"{SECRET}\n"
    assert Path(variables).read_text() == f"RDZV_SECRET={SECRET}\n"
    assert base64.b64decode(manifest["data"]["secret"]).decode() == SECRET
    assert manifest["metadata"]["name"] == name
    kubernetes_validate.validate(manifest, "1.37", strict=True)
    folder = tmp_path / "workers"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert SECRET not in " ".join(call["words"] + shown)
    assert not {"RDZV_SECRET", "ROLE"} & call["environment"].keys()
    workers.leave()
    assert [path.name for path in folder.iterdir()] == ["worker.yaml"]


def test_failed_submission_is_named_and_the_others_are_cancelled(tmp_path: Path) -> None:
    service, shown = Service(tmp_path, fails="worker-3"), list[str]()
    workers = _workers(tmp_path, "{{ NODE_RANK }}", shown, submit=service.submit, cancel=service.cancel)
    workers.start()
    wait_until("one fails", lambda: workers.problem)
    assert "Worker 3 was not submitted" in workers.problem
    assert workers.problem.endswith("ended with exit code 1: no such partition.")
    workers.cancel()
    assert service.words[3:] == [["cancel", "19"], ["cancel", "18"]]
    assert "Worker 2 (19) is cancelled." in shown
    assert any("Worker 3" in line and "did not print the {id}" in line for line in shown)


def test_workers_that_cannot_be_cancelled_are_named(tmp_path: Path) -> None:
    service, shown = Service(tmp_path), list[str]()
    workers = _workers(tmp_path, "all", shown, submit=service.submit)
    workers.start()
    _submitted(workers, service, 1)
    workers.cancel()
    assert shown[-1].startswith("All workers (18) may go on")


def test_workers_of_a_killed_launcher_are_cancelled_by_the_next(tmp_path: Path) -> None:
    service = Service(tmp_path)
    killed = _workers(tmp_path, "{{ NODE_RANK }}", submit=service.submit, cancel=service.cancel)
    killed.start()
    _submitted(killed, service, 3)
    wait_until("it is kept", lambda: "20" in (tmp_path / "workers/submitted.json").read_text())
    shown: list[str] = []
    workers = _workers(tmp_path, "{{ NODE_RANK }}", shown, submit=service.submit, cancel=service.cancel)
    workers.start()
    _submitted(workers, service, 9)
    workers.leave()
    assert service.words[3:6] == [["cancel", "20"], ["cancel", "19"], ["cancel", "18"]]
    assert shown[0] == "An earlier launcher of this job was killed, and has left workers."


def test_launcher_that_must_stop_submits_no_more(tmp_path: Path) -> None:
    service = Service(tmp_path)
    workers = _workers(
        tmp_path, "{{ NODE_RANK }}", submit=service.submit, cancel=service.cancel, NUM_NODES=99
    )
    workers.start()
    _submitted(workers, service, 1)
    workers.cancel()
    words = [first for first, _ in service.words]
    assert 0 < words.count("submit") < 98
    assert words.count("cancel") == words.count("submit")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ image }}", "'image' is undefined; give it with --set KEY=VALUE"),
        ("{{ image | tojson }}", "'image' is undefined; give it with --set KEY=VALUE"),
        ("{{ image | quote }}", "'image' is undefined; give it with --set KEY=VALUE"),
        ("{{ hosts.split(',')[2] }}", "give it with --set"),
        ("a\n{% for %}", "line 2"),
        ("{{ NODE_RANK / 0 }}", "division by zero"),
        ("{% include 'other' %}", "'other'"),
    ],
)
def test_invalid_template_is_named_before_any_file_is_written(
    tmp_path: Path, template: str, problem: str
) -> None:
    values: dict[str, Any] = {"hosts": "a,b"} if "hosts" in template else {}
    with pytest.raises(TrainerError, match=r"worker\.yaml\.j2") as raised:
        _workers(tmp_path, template, **values)
    assert problem in str(raised.value)
    assert not (tmp_path / "workers").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("no-such-file", "true {spec}", None, []), "none of ours: docker, kubernetes, slurm, vessl"),
        (("slurm", None, None, []), "needs the command that starts"),
        (("slurm", "true", None, []), "lacks {spec}"),
        (("slurm", "true '{spec}", None, []), "No closing quotation"),
        (("slurm", "no-such-program {spec}", None, []), "no program 'no-such-program'"),
        (("slurm", "true {spec}", "no-such-program", []), "--cancel: there is no program"),
        (("slurm", "true {spec}", None, ["image"]), "not KEY=VALUE"),
        (("slurm", "true {spec}", None, ["NODE_RANK=3"]), "would replace"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(TrainerError) as raised:
        read_spec(*arguments)
    assert problem in str(raised.value)


def test_job_names_stay_unique_and_valid_for_services() -> None:
    names = [job_name(job) for job in ("alpaca-17", "Alpaca 17", "alpaca_17", "아", "a" * 200, "-")]
    assert names[0] == "alpaca-17"
    assert len(set(names)) == len(names)
    assert all(len(name) <= 40 and name == name.strip("-") for name in names)


def _spec(tmp_path: Path, name: str, **values: Any) -> str:
    (template,) = SPECS.glob(f"{name}.*")
    workers = _workers(tmp_path, template, **values)
    workers.start()
    wait_until("they are submitted", lambda: (tmp_path / "workers/submitted.json").exists())
    workers.leave()
    return min((tmp_path / "workers").glob(f"{name}*")).read_text()


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ({}, {"nvidia.com/gpu": 8}),
        ({"gpu_resource": "amd.com/gpu", "rdma_resource": "rdma/hca"}, {"amd.com/gpu": 8, "rdma/hca": 1}),
        ({"gpu_resource": ""}, {}),
    ],
)
def test_kubernetes_takes_the_spec(tmp_path: Path, values: dict[str, str], limits: dict[str, int]) -> None:
    documents = list(yaml.safe_load_all(_spec(tmp_path, "kubernetes", image="a: {b}", **values)))
    assert [document["kind"] for document in documents] == ["Service", "Job"]
    for document in documents:
        kubernetes_validate.validate(document, "1.37", strict=True)
        # The oldest version in which Indexed Jobs and their pod failure policy are stable.
        kubernetes_validate.validate(document, "1.31", strict=True)
    service, job = documents
    name = service["metadata"]["name"]
    assert job["metadata"]["name"] == name
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert (job["spec"]["completions"], job["spec"]["completionMode"]) == (3, "Indexed")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["subdomain"] == name
    assert container["image"] == "a: {b}"
    assert container["command"] == ["rdm-trainer", "rendezvous", "--", *COMMAND]
    assert container["resources"]["limits"] == limits
    names = [entry["name"] for entry in container["env"]]
    # A reference can only use earlier variables.
    assert names.index("INDEX") < names.index("RDZV_NAME")
    (volume, _) = pod["volumes"]
    assert volume["secret"]["secretName"] == name


def test_a_mistake_in_a_spec_does_not_pass_the_schemas(tmp_path: Path) -> None:
    _, job = yaml.safe_load_all(_spec(tmp_path, "kubernetes", image="a"))
    job["spec"]["completion"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.37", strict=True)


def test_docker_gets_each_argument_unchanged(tmp_path: Path) -> None:
    text = _spec(tmp_path, "docker", image="a b:1", hosts="n1,n2,n3", options="--volume /x:/x")
    text = text.replace("exec docker", 'exec printf "%s\\n" "$DOCKER_HOST"')
    script = tmp_path / "script"
    script.write_text(text)
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[0] == "ssh://n1"
    assert words[-5:] == ["rendezvous", "--", *COMMAND]
    assert "a b:1" in words
    assert "RDZV_ID=Alpaca 17" in words
    assert words[words.index("--volume") + 1] == "/x:/x"
    done = subprocess.run(["sh", str(script), "cancel"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:3] == ["rm", "--force"]


def test_the_documents_service_gets_a_run_for_each_rank(tmp_path: Path) -> None:
    values = {"image": "quay.io/a", "cluster": "c", "preset": "p", "volume": "volume://v"}
    run = yaml.safe_load(_spec(tmp_path, "vessl", **values))
    assert shlex.split(run["run"]) == ["rdm-trainer", "rendezvous", "--", *COMMAND]
    assert run["env"]["ROLE"] == "worker"
    assert all(isinstance(value, str) for value in run["env"].values())
