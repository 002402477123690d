# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that the accounting would never let run are refused, by the output of 22.05's sacctmgr."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_job.slurm import accounting, limits, policy
from rdm_job.slurm.accounting import Accounting, Association, Qos

RECORDS = Path(__file__).parent / "records"
PARTITIONS = limits.partitions((RECORDS / "partitions-22.05.txt").read_text())
ALL = accounting.enforced("limits,qos")
KNOWN = Accounting(
    "rdm",
    "c1",
    ALL,
    accounting.associations((RECORDS / "associations-22.05.txt").read_text()),
    "physics",
    accounting.qualities((RECORDS / "qos-22.05.txt").read_text()),
)
"""physics is below science, and its user may use chemistry in the partition hgx."""
SAFE = dataclasses.replace(KNOWN, enforced=accounting.enforced("safe,qos"))


def problems(known: Accounting = KNOWN, partitions: Any = PARTITIONS, **slurm: Any) -> list[str]:
    config = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm}})
    return policy.problems(config, known, partitions)


def with_qos(name: str, **more: Any) -> Accounting:
    """Return the accounting with another QOS."""
    return dataclasses.replace(
        KNOWN, qos={**KNOWN.qos, name: dataclasses.replace(KNOWN.qos["normal"], name=name, **more)}
    )


def of_qos(**words: str) -> Qos:
    """Return a QOS parsed from sacctmgr's form, with only these columns filled."""
    words.setdefault("name", "x")
    row = "|".join(words.get(column, "") for column in accounting.QOS_FORMAT.split(","))
    return accounting.qualities(row)[words["name"]]


def test_sacctmgr_output_is_parsed() -> None:
    of_account = {(one.account, one.user): one for one in KNOWN.associations or ()}
    science, mine = of_account["science", ""], of_account["chemistry", "rdm"]
    assert science.counts == {"GrpJobs": 40, "GrpSubmitJobs": 90}
    assert (science.group, science.group_minutes, science.group_seconds) == (
        {"gres/gpu": 6},
        {"gres/gpu": 600_000, "mem": 100 * 1024},
        40 * 86400,
    )
    assert (mine.minutes, mine.counts) == ({"cpu": 5000}, {"MaxJobs": 0, "MaxSubmitJobs": 20})
    assert of_account["physics", ""].running_minutes == {"cpu": 6000}
    qos = KNOWN.qos["long"]
    assert qos.counts == {
        "GrpJobs": 12,
        "GrpSubmitJobs": 60,
        "MaxJobsPerUser": 3,
        "MaxJobsPerAccount": 9,
        "MaxSubmitJobsPerUser": 30,
        "MaxSubmitJobsPerAccount": 50,
    }
    assert (qos.is_first, qos.safe_factor, qos.least, qos.of_user) == (
        True,
        0.5,
        {"gres/gpu": 1},
        {"gres/gpu": 4},
    )
    assert (qos.most_seconds, qos.group_seconds) == (2 * 86400, 7 * 86400)
    assert (qos.minutes, qos.group_minutes, qos.running_minutes) == (
        {"mem": 2048, "node": 5000},
        {"cpu": 1_000_000},
        {"mem": 5120},
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("none", ""),
        ("associations", "associations"),
        ("limits,qos", "associations limits qos"),
        ("safe", "associations limits safe"),
        ("ALL", "all associations limits qos"),
    ],
)
def test_implied_enforcement_flags_are_included(value: str, words: str) -> None:
    assert accounting.enforced(value) == frozenset(words.split())


def test_user_without_an_account_is_told_how_to_get_one() -> None:
    nobody = dataclasses.replace(KNOWN, user="nobody", default_account="")
    assert problems(nobody) == [
        "Slurm takes jobs only of users who have an account, and nobody has none on the cluster c1; whoever "
        "runs it adds one with: sacctmgr add user nobody account=ACCOUNT."
    ]
    assert problems(dataclasses.replace(nobody, enforced=frozenset())) == []
    # slurmdbd does not answer, but the controller still knows the associations.
    assert problems(dataclasses.replace(nobody, associations=None)) == []


@pytest.mark.parametrize(
    "slurm",
    [
        {},
        {"nodes": 2, "gres": "gpu:a10:3", "mem": "32G", "time": "04:00:00"},
        {"qos": "long", "time": "2-0", "gres": "gpu:2"},
        {"partition": "hgx", "account": "physics", "gpus_per_node": "4"},
    ],
)
def test_what_the_accounting_lets_run(slurm: dict[str, Any]) -> None:
    assert problems(**slurm) == []


def test_accounts_are_the_same_in_upper_case() -> None:
    assert problems(account="Physics") == []
    assert problems(account="CHEMISTRY", partition="hgx") == [
        "Of your jobs of account chemistry in partition hgx, none may run at a time (MaxJobs), and the "
        "job is "
        f"one{NEVER}"
    ]


WAITS = ": Slurm would let it wait for ever."
NEVER = ": Slurm would never run it."
REFUSES = ": Slurm would refuse it."
MORE = ": request no more, or Slurm lets it wait for ever."


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ({"account": "phisics"}, "launcher.slurm.account phisics is none of yours; did you mean physics?"),
        ({"account": "law"}, "launcher.slurm.account law is none of yours; there are chemistry, physics."),
        ({"qos": "longer"}, "Slurm has no QOS longer; did you mean long?"),
        (
            {"account": "chemistry"},
            "You may use account chemistry only in hgx, and not in partition gpu2.",
        ),
        (
            {"account": "chemistry", "partition": "hgx", "qos": "long"},
            "Account chemistry may not use the QOS long; there is normal.",
        ),
        (
            {"account": "chemistry", "partition": "hgx"},
            f"none may run at a time (MaxJobs), and the job is one{NEVER}",
        ),
        (
            {"nodes": 3},
            f"The job requests 3 nodes, and a job of account physics may have 2 (MaxTRES){MORE}",
        ),
        (
            {"nodes": 2, "mem": "33G"},
            "The job requests 67584 MiB of memory, and a job of account physics may have 65536 (MaxTRES)"
            f"{MORE}",
        ),
        (
            {"time": "05:00:00"},
            "launcher.slurm.time 05:00:00 is more than the 04:00:00 of your jobs of account physics (MaxWall)"
            f"{MORE}",
        ),
        # A parent account has the limit.
        (
            {"nodes": 2, "gres": "gpu:a10:4"},
            f"The job requests 8 GPUs, and all jobs of account science may have 6 (GrpTRES){MORE}",
        ),
        # All components of a job share it.
        (
            {"nodes": {"hgx": 1, "gpu2": 1}, "gres": {"hgx": "gpu:4", "gpu2": "gpu:3"}},
            f"The job requests 7 GPUs, and all jobs of account science may have 6 (GrpTRES){MORE}",
        ),
        # The QOS takes precedence over the account, even with a longer time.
        (
            {"qos": "long", "time": "3-0", "gres": "gpu:1"},
            "is more than the 2-00:00:00 of a job of the QOS long",
        ),
        (
            {"qos": "long", "nodes": 2, "gres": "gpu:3"},
            f"The job requests 6 GPUs, and a user of the QOS long may have 4 (MaxTRESPerUser){MORE}",
        ),
        (
            {"qos": "long"},
            f"The job requests 0 GPUs, and a job of the QOS long must request 1 (MinTRES){WAITS}",
        ),
    ],
)
def test_limit_that_is_exceeded_is_named_with_values_that_fit(slurm: dict[str, Any], message: str) -> None:
    assert any(message in problem for problem in problems(**slurm)), problems(**slurm)


def test_a_limit_of_each_node_is_not_one_of_the_job() -> None:
    known = with_qos("long", of_node={"gres/gpu": 1})
    assert problems(known, qos="long", nodes=2, gres="gpu:1") == []
    assert problems(known, qos="long", nodes=2, gres="gpu:2") == [
        f"The job requests 2 GPUs of a node, and a job of the QOS long may have 1 (MaxTRESPerNode){MORE}"
    ]


def test_limits_that_are_not_enforced_refuse_no_job() -> None:
    known = dataclasses.replace(KNOWN, enforced=accounting.enforced("associations"))
    assert problems(known, nodes=3, time="05:00:00") == []


def test_partition_qos_wins_over_the_jobs_unless_it_overrides() -> None:
    known = with_qos("small", most={"node": 1}, most_seconds=3600)
    there = [dataclasses.replace(one, qos="small") for one in PARTITIONS]
    assert problems(known, there, nodes=2) == [
        f"The job requests 2 nodes, and a job of the QOS small may have 1 (MaxTRES){MORE}"
    ]
    assert problems(known, there, qos="long", gres="gpu:1", time="2-0") == []
    assert len(problems(known, there, time="2:00:00")) == 1


def test_minimum_comes_from_the_first_qos_that_has_one() -> None:
    known = with_qos("normal", least={"gres/gpu": 4})
    known = dataclasses.replace(
        known,
        qos={**known.qos, "few": dataclasses.replace(KNOWN.qos["normal"], name="few", least={"gres/gpu": 1})},
    )
    there = [dataclasses.replace(one, qos="few") for one in PARTITIONS]
    assert problems(known, there, gres="gpu:2") == []
    assert problems(known, there) == [
        f"The job requests 0 GPUs, and a job of the QOS few must request 1 (MinTRES){WAITS}"
    ]
    is_first = dataclasses.replace(known.qos["normal"], is_first=True)
    known = dataclasses.replace(known, qos={**known.qos, "normal": is_first})
    assert problems(known, there, gres="gpu:2") == [
        f"The job requests 2 GPUs, and a job of the QOS normal must request 4 (MinTRES){WAITS}"
    ]


def test_a_partition_may_take_some_qos_only() -> None:
    text = (RECORDS / "partitions-22.05.txt").read_text()
    some = limits.partitions(text.replace("AllowQos=ALL", "AllowQos=long"))
    assert problems(partitions=some) == ["Partition gpu2 takes no jobs of the QOS normal; there is long."]
    assert problems(partitions=some, qos="long", gres="gpu:1") == []
    denied = limits.partitions(text.replace("AllowQos=ALL", "DenyQos=normal"))
    assert problems(partitions=denied) == ["Partition gpu2 takes no jobs of the QOS normal; there is long."]


def test_job_limit_applies_to_each_component() -> None:
    # Three nodes, while a job may have two.
    assert problems(nodes={"hgx": 1, "gpu2": 2}, gres={"hgx": "gpu:2", "gpu2": "gpu:2"}) == []
    assert len(problems(nodes={"hgx": 1, "gpu2": 2}, gres="gpu:4")) == 1


def test_equal_limits_of_two_partitions_are_two() -> None:
    """A user has one in each partition, so each component has its own limit, and they share none."""
    own = [Association("law", "rdm", one.name, "", ("normal",), group={"node": 1}) for one in PARTITIONS]
    known = dataclasses.replace(KNOWN, associations=own)
    there = {"hgx": 1, "gpu2": 1}
    assert problems(known, account="law", nodes=there) == []
    assert problems(known, account="law", nodes={**there, "gpu2": 2}) == [
        "The job requests 2 nodes, and all your jobs of account law in partition gpu2 may have 1 (GrpTRES)"
        f"{MORE}"
    ]
    # An association for all partitions is one limit.
    known = dataclasses.replace(KNOWN, associations=[dataclasses.replace(own[0], partition="")])
    assert problems(known, account="law", nodes=there) == [
        f"The job requests 2 nodes, and all your jobs of account law may have 1 (GrpTRES){MORE}"
    ]


def limited(account: str, user: str = "", known: Accounting = KNOWN, **limits: Any) -> Accounting:
    """Return an accounting in which an account, or its user, has other limits."""
    return dataclasses.replace(
        known,
        associations=[
            dataclasses.replace(one, **limits) if (one.account, one.user) == (account, user) else one
            for one in known.associations or ()
        ],
    )


TWO = {"nodes": {"hgx": 1, "gpu2": 1}, "gres": {"hgx": "gpu:1", "gpu2": "gpu:1"}}
"""A job that Slurm counts as two."""


@pytest.mark.parametrize(
    ("known", "slurm", "message"),
    [
        (
            limited("science", counts={"GrpJobs": 0}),
            {},
            f"Of all jobs of account science, none may run at a time (GrpJobs), and the job is one{NEVER}",
        ),
        (
            limited("physics", "rdm", counts={"MaxJobs": 1}),
            TWO,
            "Of your jobs of account physics, 1 may run at a time (MaxJobs), and the job's 2 components are 2"
            f"{NEVER}",
        ),
        (
            limited("physics", "rdm", counts={"MaxSubmitJobs": 0}),
            {},
            "Of your jobs of account physics, none may be in the queue (MaxSubmitJobs), and the job is one"
            f"{REFUSES}",
        ),
        (
            with_qos("normal", counts={"MaxSubmitJobsPerUser": 1}),
            TWO,
            "Of a user of the QOS normal, 1 may be in the queue (MaxSubmitJobsPerUser), and the job's 2 "
            f"components are 2{REFUSES}",
        ),
    ],
)
def test_limit_on_the_number_of_jobs_counts_each_component(
    known: Accounting, slurm: dict[str, Any], message: str
) -> None:
    assert problems(known, **slurm) == [message]


def test_qos_limit_on_jobs_wins_over_the_accounts() -> None:
    known = limited(
        "physics", "rdm", with_qos("normal", counts={"MaxJobsPerAccount": 1}), counts={"MaxJobs": 0}
    )
    assert problems(known) == []
    known = limited("science", "", with_qos("normal", counts={"GrpJobs": 1}), counts={"GrpJobs": 0})
    assert problems(known) == []
    # These are limits of different kinds.
    known = limited("science", "", with_qos("normal", counts={"MaxJobsPerUser": 1}), counts={"GrpJobs": 0})
    assert len(problems(known)) == 1


@pytest.mark.parametrize(
    ("known", "slurm", "message"),
    [
        (
            limited("physics", "rdm", minutes={"gres/gpu": 119}),
            {"gres": "gpu:2", "time": "01:00:00"},
            "The job requests 120 minutes of GPUs, and a job of account physics may have 119 "
            f"(MaxTRESMins){MORE}",
        ),
        # Each component is a job.
        (limited("physics", "rdm", minutes={"gres/gpu": 60}), {**TWO, "time": "01:00:00"}, ""),
        (
            limited("science", running_minutes={"gres/gpu": 119}),
            {**TWO, "time": "01:00:00"},
            "The job requests 120 minutes of GPUs, and all jobs of account science may have 119 "
            "(GrpTRESRunMins)"
            f"{MORE}",
        ),
        (
            with_qos("normal", minutes={"cpu": 5}),
            {"cpus": 2, "time": "2:30"},
            f"The job requests 6 minutes of CPUs, and a job of the QOS normal may have 5 (MaxTRESMins){MORE}",
        ),
        # Without a time limit, Slurm sets one within its limits.
        (limited("physics", "rdm", minutes={"gres/gpu": 1}), {"gres": "gpu:2"}, ""),
        # How much other jobs have used is unknown.
        (limited("science", group_minutes={"cpu": 1}, group_seconds=60), {"time": "60"}, ""),
        (
            limited("science", group_minutes={"cpu": 0}),
            {"time": "60"},
            "The job requests 60 minutes of CPUs, and all jobs of account science may have 0 "
            f"(GrpTRESMins){MORE}",
        ),
        (
            limited("science", known=SAFE, group_minutes={"cpu": 59}),
            {"time": "60"},
            "The job requests 60 minutes of CPUs, and all jobs of account science may have 59 "
            f"(GrpTRESMins){MORE}",
        ),
        (
            limited("science", known=SAFE, group_seconds=3540),
            {"time": "60"},
            "launcher.slurm.time 60 is more than the 00:59:00 of all jobs of account science (GrpWall)"
            f"{MORE}",
        ),
    ],
)
def test_minutes_limits_apply_to_jobs_with_a_time_limit(
    known: Accounting, slurm: dict[str, Any], message: str
) -> None:
    assert problems(known, **slurm) == ([message] if message else [])


def test_minutes_are_scaled_by_the_qos_usage_factor_where_safe() -> None:
    of_accounts = limited("science", known=SAFE, group_minutes={"cpu": 59})
    known = dataclasses.replace(
        of_accounts,
        qos={"normal": of_qos(name="normal", flags="UsageFactorSafe", usagefactor="0.500000")},
    )
    assert problems(known, time="60") == []
    dear = {"normal": of_qos(name="normal", flags="UsageFactorSafe", usagefactor="2.000000")}
    assert "requests 80 minutes of CPUs" in problems(dataclasses.replace(known, qos=dear), time="40")[0]
    plain = {"normal": of_qos(name="normal", usagefactor="2.000000")}
    assert problems(dataclasses.replace(known, qos=plain), time="40") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cpu=10K,node=4", {"cpu": 10240, "node": 4}),
        ("mem=1.50T,gres/gpu:a10=8", {"mem": 1536 * 1024, "gres/gpu:a10": 8}),
        ("mem=512M", {"mem": 512}),
        ("mem=512", {"mem": 512}),
        ("mem=2048K", {"mem": 2}),
        ("billing=2.50M,mem=1P", {"billing": 2.5 * 1024**2, "mem": 1024**3}),
        ("cpu=many,mem=", {}),
    ],
)
def test_limits_of_resources(text: str, found: dict[str, int]) -> None:
    assert of_qos(maxtres=text).most == found


@given(
    halves=st.integers(2, 2047),
    power=st.integers(1, 3),
    of=st.sampled_from([("mem", "MGTP"), ("cpu", " KMG")]),
)
def test_numbers_with_slurms_units_are_read_exactly(halves: int, power: int, of: tuple[str, str]) -> None:
    """Slurm uses the largest unit in which the number is a multiple of one half."""
    name, units = of
    written = f"{halves // 2}" if halves % 2 == 0 else f"{halves / 2:.2f}"
    assert of_qos(maxtres=f"{name}={written}{units[power]}").most == {name: halves * 1024**power // 2}
