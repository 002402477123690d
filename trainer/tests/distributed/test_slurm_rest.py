# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs through a real slurmrestd with tokens; its clients have no other access to Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rdm_core import config as configuration
from rdm_job.slurm import rest_forms
from rdm_job.slurm.commands import SlurmError
from rdm_job.slurm.rest import Rest
from rdm_job.slurm.script import script
from tests.distributed.slurm_cluster import EACH_RELEASE, NODES, RANKS, RELEASES, Slurm, running
from tests.distributed.slurm_root import inside, root
from tests.distributed.test_slurm import WHOLE_NODES
from tests.unit.job.slurm.test_slurm_rest_forms import ALL
from tests.waiting import DEADLINE_S, wait_until

# Without the first, it needs a token of its own; with the second, it may run as root or as Slurm's user.
_SERVER = {"SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": "disable_user_check"}


class RestSlurm(Slurm):
    """A cluster with a slurmrestd, and a login host without a configuration of Slurm."""

    more_configuration = (
        "AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={folder}/jwt.key\n"
        "PartitionName=wide Nodes=t[2-3] MinNodes=2 State=UP\n"
    )

    def up(self) -> None:
        key = self.folder / "jwt.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        super().up()
        (port,) = self.ports(1, "slurmrestd")
        self.address = f"http://127.0.0.1:{port}"
        self.jwt = self.token("jwt", "3600")
        cluster = dict(self.environment)
        self.environment |= _SERVER
        plugins = ("-s", "openapi/slurmctld") if self.within else ("-s", "openapi/v0.0.38")
        self._start("slurmrestd", "-a", "rest_auth/jwt", *plugins, f"127.0.0.1:{port}")
        self.environment = cluster
        wait_until("slurmrestd answers", self.answers)

    def answers(self) -> bool:
        """Return whether it is this cluster's: another cluster's rejects the token."""
        with contextlib.suppress(SlurmError):
            return bool(Rest(self.address, str(self.jwt)).cluster()[0])
        return False

    def token(self, name: str, seconds: str) -> Path:
        """Write a token into a file, as a user does."""
        token = self.slurm("scontrol", "token", f"lifespan={seconds}")
        assert token.startswith("SLURM_JWT="), token
        path = self.folder / name
        path.write_text(token)
        path.chmod(0o600)
        return path

    def run_verb(self, *words: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        known = self.environment.pop("SLURM_CONF")
        try:
            return super().run_verb(*words, request=request)
        finally:
            self.environment["SLURM_CONF"] = known

    def request(self, job: str, *overrides: str, **more: Any) -> dict[str, Any]:
        mine = (f"launcher.slurm.rest={self.address}", f"launcher.slurm.rest_jwt={self.jwt}")
        return super().request(job, *mine, "launcher.slurm.signal=0", *overrides, **more)

    def problems(self, *overrides: str) -> list[str]:
        """Return the problems of a job, which is never submitted."""
        found: list[str] = self.run_verb("check", request=self.request("never", *overrides))["problems"]
        assert not (self.jobs / "never").exists()
        return found


# Later releases do not run as root, as these tests do.
@pytest.fixture(scope="module", params=EACH_RELEASE[:2])
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestSlurm]:
    cluster = RestSlurm(tmp_path_factory.mktemp("slurm"), RELEASES[request.param])
    with running(cluster, "slurmrestd"):
        yield cluster


GPU2 = "launcher.slurm.partition=gpu2"
"""Later releases do not report which partition is the default one."""


@pytest.mark.parametrize(
    ("release", "plugins", "api"),
    [
        ("", ("-s", "openapi/v0.0.38"), 38),
        *(
            pytest.param(
                "trixie", ("-s", "openapi/slurmctld", "-d", f"v0.0.{api}"), api, marks=pytest.mark.long
            )
            for api in (40, 41, 42)
        ),
    ],
)
def test_slurmrestd_accepts_every_option_of_a_job(
    tmp_path: Path, release: str, plugins: Sequence[str], api: int
) -> None:
    within = inside(root(release)) if release else ()
    # v0.0.38 takes no signal.
    options = {**ALL, "signal": 300 if api > 38 else 0}
    config = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": options}})
    submitted = rest_forms.submission(
        script("gpt", "/jobs/gpt", "/python", config), "/jobs/gpt", {"PATH": "/bin"}, api
    )

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        """Return slurmrestd's answer to a request on its standard input, without a controller."""
        conf = tmp_path / "slurm.conf"
        conf.write_text(
            "ClusterName=none\nSlurmctldHost=none(127.0.0.1)\nSlurmctldPort=1\nAuthAltTypes=auth/jwt\n"
            "GresTypes=gpu\nNodeName=none\n"
        )
        body = json.dumps(request)
        head = (
            f"POST /slurm/{rest_forms.name(api)}/job/submit HTTP/1.1\r\nX-SLURM-USER-NAME: root\r\n"
            "X-SLURM-USER-TOKEN: a.b.c\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        done = subprocess.run(
            [*within, "slurmrestd", "-a", "rest_auth/jwt", *plugins],
            env={**os.environ, **_SERVER, "SLURM_CONF": str(conf)},
            input=head + body,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        # Later releases append another answer.
        found: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))[0]
        return found

    whole = answer(submitted)
    assert rest_forms.error_text(whole).endswith("Unable to contact slurm controller (connect failure)")
    assert whole.get("warnings", []) == []
    submitted["jobs"][1]["tasks"] = "many"
    wrong = answer(submitted)
    # Later releases only warn.
    assert wrong.get("warnings") or "parsing" in rest_forms.error_text(wrong)


def test_heterogeneous_job_runs_and_its_token_is_in_no_file(slurm: RestSlurm) -> None:
    slurm.submit(
        "het",
        "launcher.slurm.nodes={hgx: 1, gpu2: 2}",
        "launcher.slurm.gres={hgx: gpu:hgx:2, gpu2: gpu:a10:1}",
        "launcher.slurm.mem=300M",
        "launcher.slurm.time='00:10:00'",
    )
    slurm.wait_for_ranks("het", "rank 0 of 3 on t1", "rank 1 of 3 on t2", "rank 2 of 3 on t3")
    assert slurm.wait_for_state("het", "running")["master"] == "t1"
    shown = slurm.slurm("scontrol", "show", "job", slurm.number("het"))
    # Later releases have a slash after gres.
    assert re.search(r"TresPerNode=gres[:/]gpu:hgx:2\b", shown), shown
    assert "TimeLimit=00:10:00" in shown
    slurm.let_end("het")
    assert slurm.wait_for_state("het", "finished", "failed")["nodes"] == dict.fromkeys(NODES, "done")
    secret = slurm.jwt.read_text().strip().partition("=")[2]
    files = [path for path in (slurm.jobs / "het").rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert secret not in str(slurm.run_verb("list"))


def test_queued_job_reports_its_reason_until_it_is_stopped(slurm: RestSlurm) -> None:
    slurm.submit("first", "launcher.nodes=2", GPU2, WHOLE_NODES, RANKS)
    slurm.wait_for_ranks("first", "rank 0 of 2 on t2", "rank 1 of 2 on t3")
    slurm.submit("second", "launcher.nodes=2", GPU2, WHOLE_NODES, RANKS)
    wait_until("it says why", lambda: slurm.state("second"), lambda one: "(Resources)" in one["reason"])
    states = {one["job"]: one["state"] for one in slurm.run_verb("list")["jobs"]}
    assert (states["first"], states["second"]) == ("running", "queued")
    stopped = slurm.run_verb("stop", "second")["job"]
    assert (stopped["state"], stopped["reason"]) == ("stopped", "It was cancelled, as requested.")
    saved = slurm.run_verb("stop", "first", "--timeout", "200")["job"]
    assert (saved["state"], saved["reason"]) == ("stopped", "It saved and ended, as requested.")
    slurm.submit("first", config="", resume=True)
    slurm.wait_for_state("first", "running")
    slurm.slurm("scancel", slurm.number("first"))
    assert "not by rdm-provision stop" in slurm.wait_for_state("first", "stopped")["reason"]


def test_bad_token_is_refused_in_one_sentence_before_anything_is_submitted(slurm: RestSlurm) -> None:
    def known() -> set[str]:
        return set(slurm.slurm("squeue", "-h", "--all", "--states=all", "-o", "%i").split())

    before = known()
    short = slurm.token("short", "1")
    problems = wait_until(
        "it has expired",
        lambda: slurm.problems(f"launcher.slurm.rest_jwt={short}"),
        lambda found: bool(found) and f"The token for slurmrestd in {short} expired at " in found[0],
    )
    assert len(problems) == 1
    wrong = slurm.folder / "wrong"
    # Another signature.
    wrong.write_text(slurm.jwt.read_text().strip().rpartition(".")[0] + "." + "A" * 43)
    wrong.chmod(0o600)
    (problem,) = slurm.problems(f"launcher.slurm.rest_jwt={wrong}")
    assert f"does not take the token in {wrong}" in problem
    wrong.chmod(0o640)
    (problem,) = slurm.problems(f"launcher.slurm.rest_jwt={wrong}")
    assert problem == f"Others can read the token for slurmrestd in {wrong}: give it the mode 0600."
    (problem,) = slurm.problems(f"launcher.slurm.rest_jwt={slurm.folder}/none")
    assert problem.startswith("There is no token for slurmrestd: ")
    # Slurm may forget other tests' jobs meanwhile.
    assert known() <= before


def test_unsupported_request_is_refused_before_anything_is_submitted(slurm: RestSlurm) -> None:
    with pytest.MonkeyPatch.context() as during:
        during.setattr(slurm, "address", "http://127.0.0.1:1")
        (problem,) = slurm.problems()
    assert problem == "slurmrestd at http://127.0.0.1:1 does not answer: Connection refused."
    problems = slurm.problems(GPU2, "launcher.slurm.signal=300")
    if slurm.within:
        assert problems == []
        (problem,) = slurm.problems()
        assert problem.startswith("The default partition is not known; give launcher.slurm.partition: hgx or")
    else:
        (problem,) = problems
        assert "cannot signal a script before its time limit: set launcher.slurm.signal=0" in problem
    assert slurm.problems("launcher.slurm.partition=gpu") == [
        "Slurm has no partition gpu; did you mean gpu2?"
    ]
    (problem,) = slurm.problems("launcher.slurm.partition=wide")
    assert problem.startswith("Jobs of partition wide have at least 2 nodes, and this one requests 1")
    (problem,) = slurm.problems(GPU2, "launcher.slurm.hint=multithread")
    assert problem.endswith("slurmrestd takes no launcher.slurm.hint=multithread, only nomultithread.")
    (problem,) = slurm.problems("launcher.slurm.rest_jwt=eyJh.eyJz.sig")
    assert (problem.startswith("launcher.slurm.rest_jwt must be the path"), "eyJ" in problem) == (True, False)


def test_token_in_the_environment_wins_over_the_file(
    slurm: RestSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = slurm.jwt.read_text().strip().partition("=")[2]
    missing = f"launcher.slurm.rest_jwt={slurm.folder}/none"
    monkeypatch.setitem(slurm.environment, "SLURM_JWT", token)
    slurm.submit("from-environment", missing, GPU2, "launcher.slurm.nodelist=t3", RANKS)
    slurm.wait_for_ranks("from-environment", "rank 0 of 1 on t3")
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert token not in running
    slurm.let_end("from-environment")
    assert slurm.wait_for_state("from-environment", "finished", "failed")["state"] == "finished"
