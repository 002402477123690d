"""The evaluation of the fabric: each fault is named once, with its reason, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import fabric
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.evaluation import evaluate
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.fabric import (
    Fabric,
    HostResult,
    Measurement,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.rail_results import of_rails
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.report import fabric_report, text
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.sample import peers_of
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugins.plugin_utils.fabric.node_names import names

Rtt = Callable[[str, str], float | None]

USUAL = 95.0


def measured(nodes: list[str], node: str, rtt: Rtt, **more: object) -> Measurement:
    times = {peer: rtt(node, peer) for peer in nodes if peer != node}
    fields = {"link": "eth0", "link_up": True, "rtt_us": times, **more}
    return Measurement(True, **fields)  # type: ignore[arg-type]


def cluster(nodes: list[str], rtt: Rtt = lambda _one, _other: USUAL) -> dict[str, Measurement]:
    return {node: measured(nodes, node, rtt) for node in nodes}


def cut(*gone: str) -> Rtt:
    """Return measurements in which some nodes can reach no other, and no other can reach them."""
    return lambda one, other: None if {one, other} & set(gone) else USUAL


def failing(evaluated: Fabric) -> list[str]:
    return [name for name, result in evaluated.verdicts.items() if not result.ok]


def test_a_healthy_cluster_has_no_findings() -> None:
    nodes = names(4)
    evaluated = evaluate(nodes, cluster(nodes))
    assert evaluated.ok
    assert evaluated.findings == []
    assert evaluated.warnings == []
    assert evaluated.cluster_median_us == USUAL
    assert evaluated.rtt_us["n1"] == {"n2": USUAL, "n3": USUAL, "n4": USUAL}


def test_a_cluster_of_one_node_is_healthy() -> None:
    evaluated = evaluate(["n1"], cluster(["n1"]))
    assert evaluated.ok
    assert evaluated.cluster_median_us is None


def test_a_node_that_is_cut_off_is_named_once() -> None:
    nodes = names(5)
    evaluated = evaluate(nodes, cluster(nodes, cut("n3")))
    assert failing(evaluated) == ["n3"]
    assert len(evaluated.findings) == 1
    assert evaluated.findings[0].startswith("n3: no answer from any peer")
    assert len(evaluated.failed_pairs) == 8


def test_node_with_a_link_that_is_down_is_reported_as_such() -> None:
    nodes = names(3)
    measurements = cluster(nodes, cut("n2"))
    measurements["n2"] = measurements["n2"]._replace(link_up=False)
    evaluated = evaluate(nodes, measurements)
    assert evaluated.findings == [
        "n2: no answer from any peer: "
        "eth0 in its container has no link: the interface or cable below it is down"
    ]


def test_of_two_nodes_the_one_whose_link_is_down_is_at_fault() -> None:
    nodes = names(2)
    measurements = cluster(nodes, cut("n2"))
    assert failing(evaluate(nodes, measurements)) == ["n1", "n2"]
    measurements["n2"] = measurements["n2"]._replace(link_up=False)
    assert failing(evaluate(nodes, measurements)) == ["n2"]


def test_kernel_error_is_the_suspected_reason() -> None:
    nodes = names(3)
    measurements = cluster(nodes, cut("n2"))
    measurements["n2"] = measurements["n2"]._replace(errors={"n1": "network is unreachable"})
    assert evaluate(nodes, measurements).findings == ["n2: no answer from any peer: network is unreachable"]


def test_duplicate_address_explains_the_failures_of_others() -> None:
    nodes = names(3)
    measurements = cluster(nodes)
    reason = "10.0.0.2 is used by 02:42:00:00:00:01 on the wire below eth0, too"
    outside = {"login": {"n2": "Host key verification failed"}}
    measurements["n1"] = measured(nodes, "n1", lambda _one, _other: USUAL, **outside)
    measurements["n2"] = measured(nodes, "n2", lambda _one, _other: USUAL, duplicate=reason)
    evaluated = evaluate(nodes, measurements)
    assert (failing(evaluated), evaluated.findings) == (["n2"], [f"n2: {reason}"])


def test_findings_of_several_rails_name_the_rail() -> None:
    nodes = names(3)
    whole, cut_off = (
        fabric.as_dict(evaluate(nodes, cluster(nodes, *faults))) for faults in ((), (cut("n2"),))
    )
    assert of_rails({"": whole}) == whole
    both = of_rails({"ib0": whole, "ib1": cut_off})
    (finding,) = cut_off["findings"]
    assert (both["ok"], both["findings"]) == (False, [f"rail ib1: {finding}"])
    assert both["verdicts"]["n2"] == {
        "ok": False,
        "reason": f"rail ib1: {cut_off['verdicts']['n2']['reason']}",
    }
    assert both["verdicts"]["n1"] == {"ok": True, "reason": ""}
    assert both["rails"] == {"ib0": whole, "ib1": cut_off}
    assert both["rtt_us"] == whole["rtt_us"]
    shown = text(fabric_report(both)).splitlines()
    assert shown[0].startswith("Fabric, rail ib0: ")
    assert shown[5].startswith("Fabric, rail ib1: ")
    assert shown[10:] == [f"failed: rail ib1: {finding}"]


def test_nodes_that_are_all_cut_off_share_a_line() -> None:
    nodes = names(4)
    evaluated = evaluate(nodes, cluster(nodes, lambda _one, _other: None))
    assert failing(evaluated) == nodes
    assert len(evaluated.findings) == 1
    assert evaluated.cluster_median_us is None


def test_a_split_fabric_is_reported_as_the_group_that_is_split_off() -> None:
    nodes = names(6)
    evaluated = evaluate(nodes, cluster(nodes, lambda a, b: None if (a > "n4") != (b > "n4") else USUAL))
    assert evaluated.findings == ["n5, n6: reaches only 2 of 6 nodes: the fabric is split"]
    assert failing(evaluated) == ["n5", "n6"]


def test_of_two_halves_neither_is_the_right_one() -> None:
    nodes = names(4)
    evaluated = evaluate(nodes, cluster(nodes, lambda a, b: None if (a > "n2") != (b > "n2") else USUAL))
    assert failing(evaluated) == nodes


def test_a_single_pair_is_reported_for_both_ends() -> None:
    nodes = names(4)
    evaluated = evaluate(nodes, cluster(nodes, lambda a, b: None if {a, b} == {"n2", "n3"} else USUAL))
    assert evaluated.findings == ["n2 <-> n3: no answer"]
    assert failing(evaluated) == ["n2", "n3"]


def test_a_pair_that_talks_one_way_only_is_reported_as_such() -> None:
    nodes = names(4)
    evaluated = evaluate(nodes, cluster(nodes, lambda a, b: None if (a, b) == ("n2", "n3") else USUAL))
    assert evaluated.findings == ["n2 -> n3: no answer, though there is one the other way"]


def test_a_node_that_fails_with_several_peers_explains_them() -> None:
    nodes = names(6)
    bad = {"n1", "n2"}
    evaluated = evaluate(
        nodes, cluster(nodes, lambda a, b: None if "n4" in (a, b) and {a, b} & bad else USUAL)
    )
    assert evaluated.findings == ["n4: no answer between it and n1, n2 (2 of 5 peers)"]
    assert failing(evaluated) == ["n4"]


def test_a_container_that_does_not_run_fails_its_node_only() -> None:
    nodes = names(4)
    measurements = cluster(nodes, cut("n4"))
    measurements["n4"] = Measurement(False, "container rdm does not run: it is exited", "exited")
    evaluated = evaluate(nodes, measurements)
    assert evaluated.findings == ["n4: container rdm does not run: it is exited"]
    assert failing(evaluated) == ["n4"]


def test_a_node_that_answers_but_cannot_measure_is_a_warning() -> None:
    nodes = names(3)
    measurements = cluster(nodes)
    measurements["n2"] = Measurement(False, "container rdm has no python3", "running")
    evaluated = evaluate(nodes, measurements)
    assert evaluated.ok
    assert evaluated.warnings == [
        "n2 answers all its peers, but cannot measure: container rdm has no python3"
    ]


def test_nothing_is_proven_where_no_node_can_measure() -> None:
    nodes = names(2)
    nothing = Measurement(False, "container rdm has no python3", "running")
    evaluated = evaluate(nodes, dict.fromkeys(nodes, nothing))
    assert failing(evaluated) == nodes
    assert evaluated.method == ""


def test_sshd_that_answers_no_node_is_its_nodes_fault() -> None:
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
    evaluated = evaluate(nodes, measurements)
    assert evaluated.findings == ["n3: its sshd does not answer: connection refused"]
    assert failing(evaluated) == ["n3"]


def test_an_sshd_that_answers_some_is_reported_pair_by_pair() -> None:
    nodes = names(3)
    measurements = cluster(nodes)
    measurements["n1"] = measurements["n1"]._replace(ssh={"n3": "no answer"})
    measurements["n2"] = measurements["n2"]._replace(ssh={"n3": ""})
    evaluated = evaluate(nodes, measurements)
    assert evaluated.findings == ["n1 -> n3: the sshd does not answer: no answer"]


def test_the_silent_sshd_of_a_node_that_is_cut_off_is_not_reported_again() -> None:
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
    assert len(evaluate(nodes, measurements).findings) == 1


def logged_in(count: int, refused: Callable[[str, str], bool]) -> dict[str, Measurement]:
    """Each node greets its next one, and logs in there and to itself, but for those that are refused."""
    nodes = names(count)
    found = cluster(nodes)
    for rank, node in enumerate(nodes):
        after = nodes[(rank + 1) % count]
        login = {peer: "denied" if refused(node, peer) else "" for peer in (node, after)}
        found[node] = found[node]._replace(ssh={after: ""}, login=login)
    return found


def test_a_node_with_other_keys_is_found_as_client_and_as_server_and_named_alone() -> None:
    other = logged_in(4, lambda one, peer: one != peer and "n3" in (one, peer))
    evaluated = evaluate(names(4), other)
    assert failing(evaluated) == ["n3"]
    assert evaluated.findings == ["n2 -> n3: ssh fails: denied", "n3 -> n4: ssh fails: denied"]
    assert failing(evaluate(names(2), logged_in(2, lambda one, peer: one != peer))) == ["n1", "n2"]


def test_node_that_refuses_its_own_login_explains_failures_with_it() -> None:
    evaluated = evaluate(names(4), logged_in(4, lambda _one, peer: peer == "n3"))
    assert evaluated.findings == ["n3: ssh from its container to itself fails: denied"]
    assert failing(evaluated) == ["n3"]


def test_a_login_fails_the_node_of_the_run_and_not_where_something_else_is_wrong() -> None:
    nodes = names(4)
    other = logged_in(4, lambda one, peer: one != peer and "n3" in (one, peer))
    evaluated = evaluate(nodes, {"n3": other["n3"]})
    assert failing(evaluated) == ["n3"]
    silent = other["n3"]._replace(rtt_us={**other["n3"].rtt_us, "n4": None}, ssh={"n4": "no answer"})
    assert failing(evaluate(nodes, {"n3": silent, "n4": other["n4"]._replace(ssh={})})) != ["n3"]
    assert evaluate(nodes, {"n3": silent}).ok
    assert evaluate(nodes, {name: one._replace(login={}, ssh={}) for name, one in other.items()}).ok


def test_where_icmp_is_not_let_through_the_sshds_greeting_is_an_answer() -> None:
    nodes = names(2)
    measurements = {
        node: measured(nodes, node, lambda _a, _b: None, ssh={peer: "" for peer in nodes if peer != node})
        for node in nodes
    }
    assert evaluate(nodes, measurements).ok


@pytest.mark.parametrize("count", [3, 4, 8])
def test_a_slow_node_is_named_and_fails_nothing(count: int) -> None:
    nodes = names(count)
    evaluated = evaluate(nodes, cluster(nodes, lambda a, b: 812.0 if "n3" in (a, b) else USUAL))
    assert evaluated.ok
    assert evaluated.slow == ["n3"]
    assert evaluated.warnings == ["n3 is slow: median 812 us, cluster median 95 us"]
    assert evaluated.verdicts["n3"] == HostResult(True, "median 812 us, cluster median 95 us")


def test_little_differences_of_a_fast_fabric_are_not_slow() -> None:
    nodes = names(4)
    evaluated = evaluate(nodes, cluster(nodes, lambda a, b: 50.0 if "n3" in (a, b) else 5.0))
    assert evaluated.slow == []


def test_a_node_outside_the_run_can_only_lead_to_a_warning() -> None:
    nodes = names(4)
    all_of_them = cluster(nodes, cut("n4"))
    evaluated = evaluate(nodes, {name: all_of_them[name] for name in ("n1", "n2", "n3")})
    assert evaluated.ok
    assert evaluated.outside == ["n4"]
    assert evaluated.warnings == ["no answer from nodes that are not in this run: n4"]


def test_a_node_outside_the_run_that_answers_some_is_reported_with_them() -> None:
    nodes = names(3)
    everyone = cluster(nodes, lambda a, b: None if (a, b) == ("n1", "n3") else USUAL)
    evaluated = evaluate(nodes, {name: everyone[name] for name in ("n1", "n2")})
    assert evaluated.ok
    assert evaluated.warnings == ["nodes that are not in this run: n3 does not answer n1"]


def test_a_run_of_one_node_fails_only_when_its_own_link_is_down() -> None:
    nodes = names(3)
    alone = cluster(nodes, cut("n2"))["n2"]
    assert evaluate(nodes, {"n2": alone}).ok
    assert failing(evaluate(nodes, {"n2": alone._replace(link_up=False)})) == ["n2"]


def test_losses_and_notes_are_warnings() -> None:
    nodes = names(2)
    measurements = cluster(nodes)
    measurements["n1"] = measurements["n1"]._replace(loss={"n2": 0.33}, method="tcp", note="no raw sockets")
    evaluated = evaluate(nodes, measurements)
    assert evaluated.warnings == ["lost on the way: 33% from n1 to n2", "n1: no raw sockets"]
    assert evaluated.method == "mixed"


def test_a_node_that_loses_packets_with_many_is_named_and_fails_nothing() -> None:
    nodes = names(8)
    measurements = cluster(nodes)
    for peer in ("n1", "n2", "n4"):
        measurements[peer] = measurements[peer]._replace(loss={"n3": 0.33})
    measurements["n3"] = measurements["n3"]._replace(loss={"n5": 0.67})
    measurements["n7"] = measurements["n7"]._replace(loss={"n8": 0.33})
    evaluated = evaluate(nodes, measurements)
    assert evaluated.ok
    remark = "it loses 42% of the packets to and from 4 of 7 peers"
    assert evaluated.warnings == [f"n3: {remark}", "lost on the way: 33% from n7 to n8"]
    assert evaluated.verdicts["n3"] == HostResult(True, remark)


# ---- a sample of a large cluster

LARGE = names(1000)


def sampled(
    nodes: list[str], rtt: Rtt = lambda _one, _other: USUAL, run: list[str] | None = None, **more: int
) -> dict[str, Measurement]:
    limits = {"peers": 16, "above": 256, **more}
    return {
        node: measured([*peers_of(node, nodes, run or nodes, **limits), node], node, rtt)
        for node in run or nodes
    }


@pytest.fixture(scope="module")
def large() -> dict[str, Measurement]:
    """A healthy cluster of a thousand nodes, of which each measured a sample."""
    return sampled(LARGE)


def with_faults(healthy: dict[str, Measurement], rtt: Rtt) -> dict[str, Measurement]:
    return {
        node: one._replace(rtt_us={peer: rtt(node, peer) for peer in one.rtt_us})
        for node, one in healthy.items()
    }


def test_a_healthy_sample_has_no_findings_and_says_how_sure_that_is(large: dict[str, Measurement]) -> None:
    evaluated = evaluate(LARGE, large)
    assert (evaluated.ok, evaluated.findings, evaluated.warnings) == (True, [], [])
    assert evaluated.sample is not None
    assert evaluated.sample[:3] == (16, 999, 32)
    assert evaluated.sample.pairs == pytest.approx(32 / 999)
    sampled = (
        "Sampled: 16 of 999 peers each. Every node and its link are measured 32 times, so that a bad one is "
        "found; a single bad pair is met with 3.2 %."
    )
    assert fabric.as_dict(evaluated)["sample"]["text"] == sampled
    lines = shown(evaluated)
    assert lines[-2:] == [
        sampled,
        "Every container of this run reaches every other that it was measured with.",
    ]


@pytest.mark.parametrize("count", [1, 5, 20, 200])
def test_a_sample_names_every_node_that_is_cut_off_and_no_other(
    large: dict[str, Measurement], count: int
) -> None:
    gone = Random(count).sample(LARGE, count)
    evaluated = evaluate(LARGE, with_faults(large, cut(*gone)))
    assert set(failing(evaluated)) == set(gone)
    assert len(evaluated.findings) == 1


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_sample_names_every_node_whose_container_does_not_run_and_no_other(
    large: dict[str, Measurement], count: int
) -> None:
    gone = Random(count).sample(LARGE, count)
    measurements = with_faults(large, cut(*gone))
    measurements.update(dict.fromkeys(gone, Measurement(False, "container rdm does not run", "exited")))
    evaluated = evaluate(LARGE, measurements)
    assert set(failing(evaluated)) == set(gone)
    assert evaluated.findings[0].endswith(": container rdm does not run")


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_sample_names_every_node_that_most_do_not_reach_and_no_other(
    large: dict[str, Measurement], count: int
) -> None:
    """What a flapping link does: of a node's measurements, a third come through."""
    bad = set(Random(count).sample(LARGE, count))
    flap = Random(7)
    evaluated = evaluate(
        LARGE, with_faults(large, lambda a, b: None if {a, b} & bad and flap.random() < 0.67 else USUAL)
    )
    assert set(failing(evaluated)) == bad
    assert len(evaluated.findings) == count


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_sample_names_every_slow_node_and_no_other(large: dict[str, Measurement], count: int) -> None:
    bad = set(Random(count).sample(LARGE, count))
    evaluated = evaluate(LARGE, with_faults(large, lambda a, b: 812.0 if {a, b} & bad else USUAL))
    assert evaluated.ok
    assert set(evaluated.slow) == bad


@pytest.mark.parametrize("count", [1, 5, 20])
def test_a_sample_names_every_link_that_loses_packets_and_no_other(
    large: dict[str, Measurement], count: int
) -> None:
    """A bad link loses 10 % each way, any other 0.01 %; an echo passes two links on its way, and two back."""
    draw = Random(count)
    bad = set(draw.sample(LARGE, count))
    arrives = {node: 0.9 if node in bad else 0.9999 for node in LARGE}

    def loss(one: str, other: str) -> float:
        received = (arrives[one] * arrives[other]) ** 2
        return sum(draw.random() > received for _ in range(3)) / 3

    measurements = {}
    for node, own in large.items():
        shares = {peer: loss(node, peer) for peer in own.rtt_us}
        measurements[node] = own._replace(loss={peer: share for peer, share in shares.items() if share})
    evaluated = evaluate(LARGE, measurements)
    assert evaluated.ok
    assert {name for name, result in evaluated.verdicts.items() if "it loses" in result.reason} == bad


def test_a_single_pair_in_the_sample_is_reported_for_both_ends(large: dict[str, Measurement]) -> None:
    other = next(iter(large["n7"].rtt_us))
    evaluated = evaluate(LARGE, with_faults(large, lambda a, b: None if (a, b) == ("n7", other) else USUAL))
    assert evaluated.findings == [f"n7 -> {other}: no answer"]
    assert set(failing(evaluated)) == {"n7", other}


def test_a_split_is_found_in_a_sample(large: dict[str, Measurement]) -> None:
    rack = set(LARGE[300:340])
    evaluated = evaluate(LARGE, with_faults(large, lambda a, b: None if len({a, b} & rack) == 1 else USUAL))
    assert set(failing(evaluated)) == rack
    assert evaluated.findings[0].endswith("reaches only 40 of 1000 nodes: the fabric is split")


@pytest.mark.parametrize("size", [1, 2, 3, 300])
def test_a_run_of_a_part_proves_that_its_nodes_reach_each_other(size: int) -> None:
    run = Random(size).sample(LARGE, size)
    evaluated = evaluate(LARGE, sampled(LARGE, run=run))
    assert (evaluated.ok, evaluated.warnings) == (True, [])
    assert (evaluated.sample is None) == (size <= 256)
    if size == 1:
        return
    gone = run[0]
    evaluated = evaluate(LARGE, sampled(LARGE, cut(gone), run))
    assert set(failing(evaluated)) == ({gone} if size > 2 else set(run))


def test_a_node_that_only_measured_dead_ones_is_not_faulty_but_reported() -> None:
    nodes = names(6)
    measurements = sampled(nodes, peers=1, above=2)  # a ring
    for name in ("n1", "n3"):
        measurements[name] = Measurement(False, "there is no container rdm", "missing")
    evaluated = evaluate(nodes, with_faults(measurements, cut("n1", "n3")))
    assert failing(evaluated) == ["n1", "n3"]
    assert evaluated.warnings[0].startswith("n2: measured with no node of the others that could answer")


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


@st.composite
def samples(draw: st.DrawFn) -> tuple[list[str], dict[str, Measurement]]:
    """The same, where any pairs were not measured."""
    nodes, measurements = draw(clusters())
    for name, one in measurements.items():
        if one.rtt_us:
            queried = draw(st.sets(st.sampled_from(sorted(one.rtt_us))))
            times = {peer: rtt for peer, rtt in one.rtt_us.items() if peer in queried}
            measurements[name] = one._replace(rtt_us=times)
    return nodes, measurements


@given(samples())
def test_node_in_no_failing_pair_is_not_faulty(case: tuple[list[str], dict[str, Measurement]]) -> None:
    nodes, measurements = case
    evaluated = evaluate(nodes, measurements)
    named = {name for pair in evaluated.failed_pairs for name in pair}
    for name in failing(evaluated):
        assert name in named or not measurements[name].measured or "split" in evaluated.verdicts[name].reason


@given(st.one_of(clusters(), samples()))
def test_every_failing_pair_has_a_reported_end(case: tuple[list[str], dict[str, Measurement]]) -> None:
    evaluated = evaluate(*case)
    for one, other in evaluated.failed_pairs:
        assert not (evaluated.verdicts[one].ok and evaluated.verdicts[other].ok)
    assert all(result.reason for result in evaluated.verdicts.values() if not result.ok)
    assert evaluated.ok == (not evaluated.findings)


@given(clusters())
def test_a_node_that_everybody_reaches_both_ways_is_reported_only_in_a_tie(
    case: tuple[list[str], dict[str, Measurement]],
) -> None:
    nodes, measurements = case
    evaluated = evaluate(nodes, measurements)
    touched = {name for pair in evaluated.failed_pairs for name in pair}
    for name in nodes:
        if name not in touched and measurements[name].measured:
            assert evaluated.verdicts[name].ok


@given(st.one_of(clusters(), samples()), st.randoms(use_true_random=False))
def test_result_does_not_depend_on_the_order_of_arrival(
    case: tuple[list[str], dict[str, Measurement]], random: object
) -> None:
    nodes, measurements = case
    items = list(measurements.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert evaluate(nodes, dict(items)) == evaluate(nodes, measurements)


@given(st.integers(3, 40), st.data())
def test_one_node_that_is_cut_off_is_the_only_finding(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    gone = data.draw(st.sampled_from(nodes))
    evaluated = evaluate(nodes, cluster(nodes, cut(gone)))
    assert failing(evaluated) == [gone]
    assert len(evaluated.findings) == 1


@given(st.integers(3, 20), st.floats(5.0, 200.0), st.floats(0.8, 1.25), st.data())
def test_one_slow_node_is_the_only_slow_one(
    count: int, usual: float, spread: float, data: st.DataObject
) -> None:
    nodes = names(count)
    bad = data.draw(st.sampled_from(nodes))
    times = cluster(
        nodes, lambda a, b: usual * 5 + 300 if bad in (a, b) else usual * (spread if a < b else 1)
    )
    assert evaluate(nodes, times).slow == [bad]


# ---- what goes in and out


def test_a_result_of_the_module_becomes_a_measurement() -> None:
    result = {
        "measured": True,
        "method": "icmp",
        "note": "",
        "link": {"name": "eth0", "up": True},
        "rtt_us": "n2 95.0 80.1\nn3 -\n",
        "loss": {},
        "errors": {},
        "ssh": {"n2": ""},
        "login": {"n1": ""},
    }
    one = fabric.measurement(result)
    assert one.rtt_us == {"n2": 95.0, "n3": None}
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
    one = fabric.measurement(result)
    assert not one.measured
    assert one.reason == reason


def shown(evaluated: fabric.Fabric, waiting: Sequence[str] = ()) -> list[str]:
    return text(fabric_report(fabric.as_dict(evaluated), waiting)).splitlines()


def test_of_a_small_cluster_a_matrix_is_shown() -> None:
    nodes = names(3)
    measurements = cluster(nodes, cut("n3"))
    measurements["n3"] = Measurement(False, "there is no container rdm", "missing")
    assert shown(evaluate(nodes, measurements)) == [
        "Fabric: round-trip time in microseconds between containers, ICMP",
        "from \\ to  n1  n2      n3",
        "n1          -  95  silent",
        "n2         95   -  silent",
        "n3          ?   ?       -",
        "failed: n3: there is no container rdm",
    ]


def test_of_a_run_of_one_node_the_others_are_shown_too() -> None:
    nodes = names(3)
    evaluated = evaluate(nodes, {"n2": cluster(nodes)["n2"]})
    assert shown(evaluated)[1:] == [
        "from \\ to  n2  n1  n3",
        "n2          -  95  95",
        "Not in this run: n1, n3",
    ]


def test_nodes_that_take_no_part_are_shown_with_the_reason() -> None:
    assert shown(evaluate(names(3), {}), ["n1", "n2"]) == [
        "Fabric: nothing was measured",
        "The container does not run yet on: n1, n2",
        "Not in this run: n3",
    ]


@pytest.mark.parametrize("count", [20, 200])
def test_of_a_large_cluster_a_line_per_node_and_the_longest_pairs_are_shown(count: int) -> None:
    nodes = names(count)
    evaluated = evaluate(nodes, cluster(nodes, lambda a, b: 500.0 if (a, b) == ("n7", "n9") else USUAL))
    lines = shown(evaluated)
    assert len(lines) == 1 + 1 + count + 2
    assert lines[1].split() == ["node", "min", "median", "max", "silent"]
    assert lines[8].split() == ["n7", "95", "95", "500", "0", "ok"]
    assert lines[-2].startswith("Longest: n7 -> n9 500, ")


@pytest.mark.parametrize(("count", "rows"), [(128, 128), (129, 0)])
def test_the_matrix_of_a_huge_cluster_is_left_out_of_the_data(count: int, rows: int) -> None:
    nodes = names(count)
    data = fabric.as_dict(evaluate(nodes, cluster(nodes)))
    assert len(data["rtt_us"]) == rows
    assert len(data["median_us"]) == count
