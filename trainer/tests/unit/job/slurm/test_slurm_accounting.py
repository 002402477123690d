# SPDX-License-Identifier: GPL-3.0-or-later
"""What the accounting would never let run, before it is submitted, by what sacctmgr of 22.05 printed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_job.slurm import accounting, limits
from rdm_job.slurm.accounting import Accounting, Association
from rdm_trainer import config as configuration

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


def problems(known: Accounting = KNOWN, partitions: Any = PARTITIONS, **slurm: Any) -> list[str]:
    config = configuration.from_dict({"launcher": {"kind": "slurm", "slurm": slurm}})
    return accounting.problems(config, known, partitions)


def with_qos(name: str, **more: Any) -> Accounting:
    """The same accounting with another QOS."""
    return dataclasses.replace(
        KNOWN, qos={**KNOWN.qos, name: dataclasses.replace(KNOWN.qos["normal"], name=name, **more)}
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
def test_what_is_enforced_includes_more_than_it_says(value: str, words: str) -> None:
    assert accounting.enforced(value) == frozenset(words.split())


def test_a_user_without_an_account_is_told_who_gives_one() -> None:
    nobody = dataclasses.replace(KNOWN, user="nobody", default_account="")
    assert problems(nobody) == [
        "Slurm takes jobs only of users who have an account, and nobody has none on the cluster c1; whoever "
        "runs it adds one with: sacctmgr add user nobody account=ACCOUNT."
    ]
    assert problems(dataclasses.replace(nobody, enforced=frozenset())) == []
    # slurmdbd does not answer, and the controller knows the associations all the same.
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
        f"Account chemistry lets you run no jobs (MaxJobs){WAITS}"
    ]


WAITS = ": Slurm would let it wait for ever."
MORE = ": ask for no more, or Slurm lets it wait for ever."


@pytest.mark.parametrize(
    ("slurm", "said"),
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
            f"Account chemistry lets you run no jobs (MaxJobs){WAITS}",
        ),
        (
            {"nodes": 3},
            f"The job asks for 3 nodes, and a job of account physics may have 2 (MaxTRES){MORE}",
        ),
        (
            {"nodes": 2, "mem": "33G"},
            "The job asks for 67584 MiB of memory, and a job of account physics may have 65536 (MaxTRES)"
            f"{MORE}",
        ),
        (
            {"time": "05:00:00"},
            "launcher.slurm.time 05:00:00 is more than the 04:00:00 of your jobs of account physics (MaxWall)"
            f"{MORE}",
        ),
        # An account above has the limit.
        (
            {"nodes": 2, "gres": "gpu:a10:4"},
            f"The job asks for 8 GPUs, and all jobs of account science may have 6 (GrpTRES){MORE}",
        ),
        # All components of a job have it together.
        (
            {"nodes": {"hgx": 1, "gpu2": 1}, "gres": {"hgx": "gpu:4", "gpu2": "gpu:3"}},
            f"The job asks for 7 GPUs, and all jobs of account science may have 6 (GrpTRES){MORE}",
        ),
        # The QOS goes before the account, also with a longer time.
        (
            {"qos": "long", "time": "3-0", "gres": "gpu:1"},
            "is more than the 2-00:00:00 of a job of the QOS long",
        ),
        (
            {"qos": "long", "nodes": 2, "gres": "gpu:3"},
            f"The job asks for 6 GPUs, and a user of the QOS long may have 4 (MaxTRESPerUser){MORE}",
        ),
        (
            {"qos": "long"},
            f"The job asks for 0 GPUs, and a job of the QOS long must ask for 1 (MinTRES){WAITS}",
        ),
    ],
)
def test_what_it_never_lets_run_is_named_with_what_would(slurm: dict[str, Any], said: str) -> None:
    assert any(said in problem for problem in problems(**slurm)), problems(**slurm)


def test_a_limit_of_each_node_is_not_one_of_the_job() -> None:
    known = with_qos("long", of_node={"gres/gpu": 1})
    assert problems(known, qos="long", nodes=2, gres="gpu:1") == []
    assert problems(known, qos="long", nodes=2, gres="gpu:2") == [
        f"The job asks for 2 GPUs of a node, and a job of the QOS long may have 1 (MaxTRESPerNode){MORE}"
    ]


def test_limits_that_slurm_does_not_hold_jobs_to_refuse_nothing() -> None:
    known = dataclasses.replace(KNOWN, enforced=accounting.enforced("associations"))
    assert problems(known, nodes=3, time="05:00:00") == []


def test_a_partitions_qos_goes_before_the_jobs_unless_that_says_otherwise() -> None:
    known = with_qos("small", most={"node": 1}, most_seconds=3600)
    there = [dataclasses.replace(one, qos="small") for one in PARTITIONS]
    assert problems(known, there, nodes=2) == [
        f"The job asks for 2 nodes, and a job of the QOS small may have 1 (MaxTRES){MORE}"
    ]
    assert problems(known, there, qos="long", gres="gpu:1", time="2-0") == []
    assert len(problems(known, there, time="2:00:00")) == 1


def test_the_first_qos_that_has_a_least_number_says_how_many_it_is() -> None:
    known = with_qos("normal", least={"gres/gpu": 4})
    known = dataclasses.replace(
        known,
        qos={**known.qos, "few": dataclasses.replace(KNOWN.qos["normal"], name="few", least={"gres/gpu": 1})},
    )
    there = [dataclasses.replace(one, qos="few") for one in PARTITIONS]
    assert problems(known, there, gres="gpu:2") == []
    assert problems(known, there) == [
        f"The job asks for 0 GPUs, and a job of the QOS few must ask for 1 (MinTRES){WAITS}"
    ]
    is_first = dataclasses.replace(known.qos["normal"], is_first=True)
    known = dataclasses.replace(known, qos={**known.qos, "normal": is_first})
    assert problems(known, there, gres="gpu:2") == [
        f"The job asks for 2 GPUs, and a job of the QOS normal must ask for 4 (MinTRES){WAITS}"
    ]


def test_a_partition_may_take_some_qos_only() -> None:
    text = (RECORDS / "partitions-22.05.txt").read_text()
    some = limits.partitions(text.replace("AllowQos=ALL", "AllowQos=long"))
    assert problems(partitions=some) == ["Partition gpu2 takes no jobs of the QOS normal; there is long."]
    assert problems(partitions=some, qos="long", gres="gpu:1") == []
    denied = limits.partitions(text.replace("AllowQos=ALL", "DenyQos=normal"))
    assert problems(partitions=denied) == ["Partition gpu2 takes no jobs of the QOS normal; there is long."]


def test_a_limit_of_each_job_is_of_each_component() -> None:
    # Three nodes, of which a job may have two.
    assert problems(nodes={"hgx": 1, "gpu2": 2}, gres={"hgx": "gpu:2", "gpu2": "gpu:2"}) == []
    assert len(problems(nodes={"hgx": 1, "gpu2": 2}, gres="gpu:4")) == 1


def test_equal_limits_of_two_partitions_are_two() -> None:
    """A user's own, in each of them: each component has its own one, and not both one together."""
    own = [Association("law", "rdm", one.name, "", ("normal",), group={"node": 1}) for one in PARTITIONS]
    known = dataclasses.replace(KNOWN, associations=own)
    there = {"hgx": 1, "gpu2": 1}
    assert problems(known, account="law", nodes=there) == []
    assert problems(known, account="law", nodes={**there, "gpu2": 2}) == [
        "The job asks for 2 nodes, and all your jobs of account law in partition gpu2 may have 1 (GrpTRES)"
        f"{MORE}"
    ]
    # What is one's for all partitions is one.
    known = dataclasses.replace(KNOWN, associations=[dataclasses.replace(own[0], partition="")])
    assert problems(known, account="law", nodes=there) == [
        f"The job asks for 2 nodes, and all your jobs of account law may have 1 (GrpTRES){MORE}"
    ]


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
def test_what_a_limit_says_of_resources(text: str, found: dict[str, int]) -> None:
    (read,) = accounting.qualities(f"x|||{text}|||||").values()
    assert read.most == found


@given(
    halves=st.integers(2, 2047),
    power=st.integers(1, 3),
    of=st.sampled_from([("mem", "MGTP"), ("cpu", " KMG")]),
)
def test_what_slurm_writes_of_a_number_is_that_number(halves: int, power: int, of: tuple[str, str]) -> None:
    """It takes the greatest unit in which a number has no more than a half behind its point."""
    name, units = of
    written = f"{halves // 2}" if halves % 2 == 0 else f"{halves / 2:.2f}"
    (read,) = accounting.qualities(f"x|||{name}={written}{units[power]}|||||").values()
    assert read.most == {name: halves * 1024**power // 2}
