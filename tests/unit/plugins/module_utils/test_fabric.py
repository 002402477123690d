"""The judgement on the fabric: each fault named once, with its reason, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ansible_collections.rdm.provision.plugins.module_utils import fabric
from ansible_collections.rdm.provision.plugins.module_utils.fabric import Fabric, Measurement, Verdict
from hypothesis import given
from hypothesis import strategies as st

Rtt = Callable[[str, str], float | None]

USUAL = 95.0


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(1, count + 1)]


def measured(nodes: list[str], node: str, rtt: Rtt, **more: object) -> Measurement:
    times = {peer: None if peer == node else rtt(node, peer) for peer in nodes}
    fields = {"link": "eth0", "link_up": True, "rtt_us": times, **more}
    return Measurement(True, **fields)  # type: ignore[arg-type]


def cluster(nodes: list[str], rtt: Rtt = lambda _one, _other: USUAL) -> dict[str, Measurement]:
    return {node: measured(nodes, node, rtt) for node in nodes}


def cut(*gone: str) -> Rtt:
    """Nodes that nobody reaches and that reach nobody."""
    return lambda one, other: None if {one, other} & set(gone) else USUAL


def failing(judged: Fabric) -> list[str]:
    return [name for name, verdict in judged.verdicts.items() if not verdict.ok]


def test_a_healthy_cluster_has_no_findings() -> None:
    nodes = names(4)
    judged = fabric.judge(nodes, cluster(nodes))
    assert judged.ok
    assert judged.findings == []
    assert judged.warnings == []
    assert judged.cluster_median_us == USUAL
    assert judged.rtt_us["n1"] == {"n2": USUAL, "n3": USUAL, "n4": USUAL}


def test_a_cluster_of_one_node_is_healthy() -> None:
    judged = fabric.judge(["n1"], cluster(["n1"]))
    assert judged.ok
    assert judged.cluster_median_us is None


def test_a_node_that_is_cut_off_is_named_once() -> None:
    nodes = names(5)
    judged = fabric.judge(nodes, cluster(nodes, cut("n3")))
    assert failing(judged) == ["n3"]
    assert len(judged.findings) == 1
    assert judged.findings[0].startswith("n3: no answer from any peer")
    assert len(judged.failed_pairs) == 8


def test_a_node_whose_link_is_down_says_so() -> None:
    nodes = names(3)
    measurements = cluster(nodes, cut("n2"))
    measurements["n2"] = measurements["n2"]._replace(link_up=False)
    judged = fabric.judge(nodes, measurements)
    assert judged.findings == [
        "n2: no answer from any peer: "
        "eth0 in its container has no link: the interface or cable below it is down"
    ]


def test_of_two_nodes_the_one_whose_link_is_down_is_at_fault() -> None:
    nodes = names(2)
    measurements = cluster(nodes, cut("n2"))
    assert failing(fabric.judge(nodes, measurements)) == ["n1", "n2"]
    measurements["n2"] = measurements["n2"]._replace(link_up=False)
    assert failing(fabric.judge(nodes, measurements)) == ["n2"]


def test_the_kernels_words_are_the_suspicion() -> None:
    nodes = names(3)
    measurements = cluster(nodes, cut("n2"))
    measurements["n2"] = measurements["n2"]._replace(errors={"n1": "network is unreachable"})
    assert fabric.judge(nodes, measurements).findings == [
        "n2: no answer from any peer: network is unreachable"
    ]


def test_nodes_that_are_all_cut_off_share_a_line() -> None:
    nodes = names(4)
    judged = fabric.judge(nodes, cluster(nodes, lambda _one, _other: None))
    assert failing(judged) == nodes
    assert len(judged.findings) == 1
    assert judged.cluster_median_us is None


def test_a_split_fabric_is_told_as_the_group_that_is_split_off() -> None:
    nodes = names(6)
    judged = fabric.judge(nodes, cluster(nodes, lambda a, b: None if (a > "n4") != (b > "n4") else USUAL))
    assert judged.findings == ["n5, n6: reaches only 2 of 6 nodes: the fabric is split"]
    assert failing(judged) == ["n5", "n6"]


def test_of_two_halves_neither_is_the_right_one() -> None:
    nodes = names(4)
    judged = fabric.judge(nodes, cluster(nodes, lambda a, b: None if (a > "n2") != (b > "n2") else USUAL))
    assert failing(judged) == nodes


def test_a_single_pair_is_told_for_both_ends() -> None:
    nodes = names(4)
    judged = fabric.judge(nodes, cluster(nodes, lambda a, b: None if {a, b} == {"n2", "n3"} else USUAL))
    assert judged.findings == ["n2 <-> n3: no answer"]
    assert failing(judged) == ["n2", "n3"]


def test_a_pair_that_talks_one_way_only_is_told_as_such() -> None:
    nodes = names(4)
    judged = fabric.judge(nodes, cluster(nodes, lambda a, b: None if (a, b) == ("n2", "n3") else USUAL))
    assert judged.findings == ["n2 -> n3: no answer, though there is one the other way"]


def test_a_node_that_fails_with_several_peers_explains_them() -> None:
    nodes = names(6)
    bad = {"n1", "n2"}
    judged = fabric.judge(
        nodes, cluster(nodes, lambda a, b: None if "n4" in (a, b) and {a, b} & bad else USUAL)
    )
    assert judged.findings == ["n4: no answer between it and n1, n2 (2 of 5 peers)"]
    assert failing(judged) == ["n4"]


def test_a_container_that_does_not_run_fails_its_node_only() -> None:
    nodes = names(4)
    measurements = cluster(nodes, cut("n4"))
    measurements["n4"] = Measurement(False, "container rdm does not run: it is exited", "exited")
    judged = fabric.judge(nodes, measurements)
    assert judged.findings == ["n4: container rdm does not run: it is exited"]
    assert failing(judged) == ["n4"]


def test_a_node_that_answers_but_cannot_measure_is_a_warning() -> None:
    nodes = names(3)
    measurements = cluster(nodes)
    measurements["n2"] = Measurement(False, "container rdm has no python3", "running")
    judged = fabric.judge(nodes, measurements)
    assert judged.ok
    assert judged.warnings == ["n2 answers all others, but cannot measure: container rdm has no python3"]


def test_where_nobody_can_measure_nothing_is_proven() -> None:
    nodes = names(2)
    nothing = Measurement(False, "container rdm has no python3", "running")
    judged = fabric.judge(nodes, dict.fromkeys(nodes, nothing))
    assert failing(judged) == nodes
    assert judged.method == ""


def test_an_sshd_that_answers_nobody_is_its_nodes_fault() -> None:
    nodes = names(3)
    measurements = {
        node: measured(
            nodes,
            node,
            lambda _one, _other: USUAL,
            ssh={peer: "connection refused" if peer == "n3" else "" for peer in nodes if peer != node},
        )
        for node in nodes
    }
    judged = fabric.judge(nodes, measurements)
    assert judged.findings == ["n3: its sshd does not answer: connection refused"]
    assert failing(judged) == ["n3"]


def test_an_sshd_that_answers_some_is_told_pair_by_pair() -> None:
    nodes = names(3)
    measurements = cluster(nodes)
    measurements["n1"] = measurements["n1"]._replace(ssh={"n3": "no answer"})
    measurements["n2"] = measurements["n2"]._replace(ssh={"n3": ""})
    judged = fabric.judge(nodes, measurements)
    assert judged.findings == ["n1 -> n3: the sshd does not answer: no answer"]


def test_the_silent_sshd_of_a_node_that_is_cut_off_is_not_told_again() -> None:
    nodes = names(4)
    measurements = {
        node: measured(
            nodes,
            node,
            cut("n3"),
            ssh={peer: "no answer" if "n3" in (node, peer) else "" for peer in nodes if peer != node},
        )
        for node in nodes
    }
    assert len(fabric.judge(nodes, measurements).findings) == 1


def test_where_icmp_is_not_let_through_the_sshds_greeting_is_an_answer() -> None:
    nodes = names(2)
    measurements = {
        node: measured(nodes, node, lambda _a, _b: None, ssh={peer: "" for peer in nodes if peer != node})
        for node in nodes
    }
    assert fabric.judge(nodes, measurements).ok


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_slow_node_is_named_and_fails_nothing(count: int) -> None:
    nodes = names(count)
    judged = fabric.judge(nodes, cluster(nodes, lambda a, b: 812.0 if "n3" in (a, b) else USUAL))
    assert judged.ok
    assert judged.slow == ["n3"]
    assert judged.warnings == ["n3 is slow: median 812 us, cluster median 95 us"]
    assert judged.verdicts["n3"] == Verdict(True, "median 812 us, cluster median 95 us")


def test_little_differences_of_a_fast_fabric_are_not_slow() -> None:
    nodes = names(4)
    judged = fabric.judge(nodes, cluster(nodes, lambda a, b: 50.0 if "n3" in (a, b) else 5.0))
    assert judged.slow == []


def test_a_node_outside_the_run_can_only_lead_to_a_warning() -> None:
    nodes = names(4)
    all_of_them = cluster(nodes, cut("n4"))
    judged = fabric.judge(nodes, {name: all_of_them[name] for name in ("n1", "n2", "n3")})
    assert judged.ok
    assert judged.outside == ["n4"]
    assert judged.warnings == ["no answer from nodes that are not in this run: n4"]


def test_a_node_outside_the_run_that_answers_some_is_told_with_them() -> None:
    nodes = names(3)
    everyone = cluster(nodes, lambda a, b: None if (a, b) == ("n1", "n3") else USUAL)
    judged = fabric.judge(nodes, {name: everyone[name] for name in ("n1", "n2")})
    assert judged.ok
    assert judged.warnings == ["nodes that are not in this run: n3 does not answer n1"]


def test_a_run_of_one_node_fails_only_when_its_own_link_is_down() -> None:
    nodes = names(3)
    alone = cluster(nodes, cut("n2"))["n2"]
    assert fabric.judge(nodes, {"n2": alone}).ok
    assert failing(fabric.judge(nodes, {"n2": alone._replace(link_up=False)})) == ["n2"]


def test_losses_and_notes_are_warnings() -> None:
    nodes = names(2)
    measurements = cluster(nodes)
    measurements["n1"] = measurements["n1"]._replace(loss={"n2": 0.33}, method="tcp", note="no raw sockets")
    judged = fabric.judge(nodes, measurements)
    assert judged.warnings == ["lost on the way: 33% from n1 to n2", "n1: no raw sockets"]
    assert judged.method == "mixed"


# ---- properties


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], dict[str, Measurement]]:
    """A cluster with any set of failing directed pairs, and some nodes without a measurement."""
    nodes = names(draw(st.integers(1, 9)))
    pairs = [(one, other) for one in nodes for other in nodes if one != other]
    silent = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    dead = draw(st.sets(st.sampled_from(nodes)))
    measurements = cluster(nodes, lambda a, b: None if (a, b) in silent else USUAL)
    for name in dead:
        measurements[name] = Measurement(False, "no python3", draw(st.sampled_from(["running", "exited"])))
    return nodes, measurements


@given(clusters())
def test_every_failing_pair_has_an_end_that_is_told(case: tuple[list[str], dict[str, Measurement]]) -> None:
    judged = fabric.judge(*case)
    for one, other in judged.failed_pairs:
        assert not (judged.verdicts[one].ok and judged.verdicts[other].ok)
    assert all(verdict.reason for verdict in judged.verdicts.values() if not verdict.ok)
    assert judged.ok == (not judged.findings)


@given(clusters())
def test_a_node_that_everybody_reaches_both_ways_is_told_only_in_a_tie(
    case: tuple[list[str], dict[str, Measurement]],
) -> None:
    nodes, measurements = case
    judged = fabric.judge(nodes, measurements)
    touched = {name for pair in judged.failed_pairs for name in pair}
    for name in nodes:
        if name not in touched and measurements[name].measured:
            assert judged.verdicts[name].ok


@given(clusters(), st.randoms(use_true_random=False))
def test_the_judgement_does_not_depend_on_the_order_of_arrival(
    case: tuple[list[str], dict[str, Measurement]], random: object
) -> None:
    nodes, measurements = case
    items = list(measurements.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert fabric.judge(nodes, dict(items)) == fabric.judge(nodes, measurements)


@given(st.integers(3, 40), st.data())
def test_one_node_that_is_cut_off_is_the_only_finding(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    gone = data.draw(st.sampled_from(nodes))
    judged = fabric.judge(nodes, cluster(nodes, cut(gone)))
    assert failing(judged) == [gone]
    assert len(judged.findings) == 1


@given(st.integers(3, 20), st.floats(5.0, 200.0), st.floats(0.8, 1.25), st.data())
def test_one_slow_node_is_the_only_slow_one(
    count: int, usual: float, spread: float, data: st.DataObject
) -> None:
    nodes = names(count)
    bad = data.draw(st.sampled_from(nodes))
    times = cluster(
        nodes, lambda a, b: usual * 5 + 300 if bad in (a, b) else usual * (spread if a < b else 1)
    )
    assert fabric.judge(nodes, times).slow == [bad]


# ---- what goes in and out


def test_nodes_are_read_in_the_order_of_ranks() -> None:
    assert fabric.parse_nodes("n2 10.0.0.1\n\nn1 10.0.0.2\n") == {"n2": "10.0.0.1", "n1": "10.0.0.2"}
    with pytest.raises(ValueError, match=r"line 2 .* 'n1'"):
        fabric.parse_nodes("n2 10.0.0.1\nn1\n")


def test_a_result_of_the_module_becomes_a_measurement() -> None:
    result = {
        "measured": True,
        "method": "icmp",
        "note": "",
        "link": {"name": "eth0", "up": True},
        "rtt_us": [None, 95.0],
        "loss": {},
        "errors": {},
        "ssh": {"n2": ""},
    }
    one = fabric.measurement(["n1", "n2"], result)
    assert one.rtt_us == {"n1": None, "n2": 95.0}
    assert one.link_up is True


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"measured": False, "reason": "there is no container rdm"}, "there is no container rdm"),
        ({"failed": True, "msg": "bad option"}, "bad option"),
        ({"skipped": True}, "the measurement did not run"),
    ],
)
def test_a_result_without_measurement_keeps_its_reason(result: dict[str, object], reason: str) -> None:
    one = fabric.measurement(["n1"], result)
    assert not one.measured
    assert one.reason == reason


def test_the_table_of_a_small_cluster_is_a_matrix() -> None:
    nodes = names(3)
    measurements = cluster(nodes, cut("n3"))
    measurements["n3"] = Measurement(False, "there is no container rdm", "missing")
    assert fabric.table(fabric.judge(nodes, measurements)).splitlines() == [
        "Round-trip time in microseconds, from the container of the row to that of the column:",
        "    n1  n2  n3",
        "n1   .  95  --",
        "n2  95   .  --",
        "n3   ?   ?   .",
        "FAILED n3: there is no container rdm",
    ]


def test_the_table_of_a_run_of_one_node_shows_the_others_too() -> None:
    nodes = names(3)
    judged = fabric.judge(nodes, {"n2": cluster(nodes)["n2"]})
    assert fabric.table(judged).splitlines()[1:] == [
        "    n2  n1  n3",
        "n2   .  95  95",
        "Not in this run: n1, n3",
    ]


def test_the_table_tells_who_takes_no_part_and_why() -> None:
    judged = fabric.judge(names(3), {})
    assert fabric.table(judged, ["n1", "n2"]).splitlines() == [
        "Nothing was measured.",
        "The container does not run yet on: n1, n2",
        "Not in this run: n3",
    ]


def test_the_table_of_a_large_cluster_has_a_line_per_node_and_the_longest_pairs() -> None:
    nodes = names(20)
    judged = fabric.judge(nodes, cluster(nodes, lambda a, b: 500.0 if (a, b) == ("n7", "n9") else USUAL))
    lines = fabric.table(judged).splitlines()
    assert len(lines) == 1 + 1 + 20 + 2
    assert lines[-2].startswith("Longest: n7 -> n9 500, ")


@pytest.mark.parametrize(("count", "rows"), [(128, 128), (129, 0)])
def test_the_matrix_of_a_huge_cluster_is_left_out_of_the_data(count: int, rows: int) -> None:
    nodes = names(count)
    data = fabric.as_dict(fabric.judge(nodes, cluster(nodes)))
    assert len(data["rtt_us"]) == rows
    assert len(data["median_us"]) == count
