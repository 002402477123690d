# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the fabric: find the faulty nodes in what every container measured, and say why.

Each fault is reported once. If one node of a hundred is cut off, the others report it silent, and it reports
them silent: 198 failing pairs, one cause. So nodes are first sorted into groups that reach each other. A node
alone is cut off, a small group is split off, and only failures within a group are reported pair by pair,
beginning with the node that explains most of them.

A pair that was not measured is unknown, not silent; in a large cluster most pairs are.

Pure: it reads nothing and prints nothing. Times are in microseconds.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.fabric import (
    Fabric,
    HostResult,
    Measurement,
    Pair,
    Sample,
)

LOSSY_NODES = 32  # how many are listed


LOSSY_PEERS = 3  # a node with at least this many lossy links …


LOSSY_SHARE = 0.125  # … and this share of its measured links is faulty itself


def evaluate(
    nodes: Sequence[str],
    measurements: Mapping[str, Measurement],
    slow_factor: float = 4.0,
    slow_floor_us: float = 300.0,
) -> Fabric:
    """Evaluate the fabric.

    Args:
        nodes: all names of the cluster in the order of ranks.
        measurements: by node, for the nodes of this run.
        slow_factor: a node is slow if its median exceeds the cluster's median by this factor …
        slow_floor_us: … and by this much.
    """
    return _Evaluator(nodes, measurements, slow_factor, slow_floor_us).evaluate()


class _Evaluator:
    """The steps of one evaluation, and the state that they share."""

    def __init__(
        self,
        nodes: Sequence[str],
        measurements: Mapping[str, Measurement],
        slow_factor: float,
        slow_floor_us: float,
    ) -> None:
        self.nodes = [name for name in nodes if name in measurements]
        self.outside = [name for name in nodes if name not in measurements]
        self.measurements = measurements
        self.slow_factor = slow_factor
        self.slow_floor_us = slow_floor_us
        self.reasons: dict[str, list[str]] = {name: [] for name in self.nodes}
        self.findings: list[str] = []
        self.warnings: list[str] = []
        self.measuring = [name for name in self.nodes if measurements[name].measured]
        members = set(self.nodes)
        self.rank = {name: rank for rank, name in enumerate(nodes)}
        self.remarks: dict[str, str] = {}
        self.silent: dict[str, set[str]] = {}
        self.probed_by: dict[str, list[str]] = {name: [] for name in nodes}
        for name in self.measuring:
            rtts = measurements[name].rtt_us
            self.silent[name] = {
                peer
                for peer, rtt in rtts.items()
                if rtt is None and peer in members and not self._greets(name, peer)
            }
            for peer in rtts:
                self.probed_by.setdefault(peer, []).append(name)

    def evaluate(self) -> Fabric:
        """Run the steps, from the causes that explain most to those that explain least."""
        failed_pairs = [(one, other) for one in self.measuring for other in self._by_rank(self.silent[one])]
        explained = self._not_measured() | self._duplicates()
        explained |= self._cut_off(explained)
        self._pairs([pair for pair in failed_pairs if not explained & set(pair)])
        self._logins(explained | self._sshd(explained))
        medians, usual, slow = self._slow()
        self._outside()
        self._losses()
        self._notes()
        verdicts = {
            name: HostResult(not self.reasons[name], "; ".join(self.reasons[name])) for name in self.nodes
        }
        for name, remark in self.remarks.items():
            if verdicts[name].ok:
                verdicts[name] = HostResult(True, remark)
        methods = {self.measurements[name].method for name in self.measuring}
        return Fabric(
            nodes=self.nodes,
            outside=self.outside,
            verdicts=verdicts,
            findings=self.findings,
            warnings=self.warnings,
            rtt_us={name: self.measurements[name].rtt_us for name in self.measuring},
            median_us=medians,
            cluster_median_us=usual,
            slow=slow,
            failed_pairs=failed_pairs,
            method=methods.pop() if len(methods) == 1 else "mixed" if methods else "",
            sample=self._sample(),
        )

    # ---- steps

    def _not_measured(self) -> set[str]:
        """Report the nodes that could not measure; return those that do not answer either."""
        dead = set()
        causes: dict[str, list[str]] = {}
        for name in self.nodes:
            own = self.measurements[name]
            if own.measured:
                continue
            probes = self.probed_by[name]
            if (
                probes
                and own.container_state == "running"
                and not any(name in self.silent[peer] for peer in probes)
            ):
                self.warnings.append(f"{name} answers all its peers, but cannot measure: {own.reason}")
                continue
            causes.setdefault(own.reason, []).append(name)
            dead.add(name)
        for reason, names in causes.items():
            self._root_cause(names, reason)
        return dead

    def _duplicates(self) -> set[str]:
        """Report and return the nodes whose address another host has too: either of the two may answer."""
        found = {name: self.measurements[name].duplicate for name in self.measuring}
        for name, reason in found.items():
            if reason:
                self._root_cause([name], reason)
        return {name for name, reason in found.items() if reason}

    def _cut_off(self, dead: set[str]) -> set[str]:
        """Report and return the nodes and groups that do not reach the main part of the cluster."""
        groups = self._groups([name for name in self.nodes if name not in dead])
        several = len(groups) > 1
        main = groups[0] if several and len(groups[0]) > len(groups[1]) else []
        others = [group for group in groups if group is not main]
        groups = []
        unknown: list[list[str]] = []
        for group in others:
            silent = self._measured_beyond(group, dead) or self._hears_nobody(group)
            (groups if silent else unknown).append(group)
        if several and unknown:
            self.warnings.append(
                f"{listed(name for group in unknown for name in group)}: measured with no node of the "
                "others that could answer: nothing is known of the way there until all pairs are measured"
            )
        split = [group for group in groups if len(group) > 1]
        for group in split:
            share = f"{len(group)} of {len(self.nodes)} nodes"
            self._root_cause(group, f"reaches only {share}: the fabric is split")
        alone = [group[0] for group in groups if len(group) == 1]
        down = [name for name in alone if self.measurements[name].link_up is False]
        if not main and not split and len(down) == len(alone) - 1:
            alone = down  # all but one have no link, so the last one is not faulty
        causes: dict[str, list[str]] = {}
        for name in alone:
            causes.setdefault(self._suspicion(name), []).append(name)
        for cause, names in causes.items():
            self._root_cause(names, f"no answer from any peer: {cause}")
        return {*alone, *(name for group in split for name in group)}

    def _pairs(self, pairs: list[Pair]) -> None:
        """Report the causes of the other failing pairs, the node that explains most of them first."""
        silent: dict[str, set[str]] = {}
        for one, other in pairs:
            silent.setdefault(one, set()).add(other)
            silent.setdefault(other, set()).add(one)
        left = set(pairs)
        while left:
            worst = max(self.nodes, key=lambda name: len(silent.get(name, ())))
            peers = self._by_rank(silent.get(worst, ()))
            if len(peers) < 2:
                break
            self._root_cause(
                [worst],
                f"no answer between it and {listed(peers)} "
                f"({len(peers)} of {len(self._partners(worst))} peers)",
            )
            for peer in peers:
                silent[peer].discard(worst)
                left -= {(worst, peer), (peer, worst)}
            del silent[worst]
        for one, other in sorted(left, key=lambda pair: (self.rank[pair[0]], self.rank[pair[1]])):
            back = (other, one) in left
            if back and self.rank[other] < self.rank[one]:
                continue  # reported in the other direction
            error = self.measurements[one].errors.get(other, "")
            one_way = not back and one in self.measurements[other].rtt_us
            self._record_pair(
                one,
                other,
                f"{one} {'<->' if back else '->'} {other}: no answer"
                f"{', though there is one the other way' if one_way else ''}{f' ({error})' if error else ''}",
            )

    def _sshd(self, explained: set[str]) -> set[str]:
        """Report sshds that do not answer on nodes that do; return the nodes whose sshd answers nobody."""
        dead = set()
        for name in self.nodes:
            if name in explained:
                continue
            probes = {
                peer: self.measurements[peer].ssh[name]
                for peer in self.probed_by[name]
                if name in self.measurements[peer].ssh
                and name not in self.silent[peer]
                and peer not in explained
            }
            wrong = {peer: text for peer, text in probes.items() if text}
            if not wrong:
                continue
            if len(wrong) == len(probes):
                text = statistics.mode(sorted(wrong.values()))
                self._root_cause([name], f"its sshd does not answer: {text}")
                dead.add(name)
                continue
            for peer, text in wrong.items():
                self._record_pair(peer, name, f"{peer} -> {name}: the sshd does not answer: {text}")
        return dead

    def _logins(self, explained: set[str]) -> None:
        """Report the pairs whose sshd answers but refuses the login."""
        failed = {
            (name, peer): text
            for name in self.measuring
            for peer, text in self.measurements[name].login.items()
            if text and not explained & {name, peer}
        }
        alone = [name for name, peer in failed if name == peer]
        for name in alone:
            self._root_cause([name], f"ssh from its container to itself fails: {failed[name, name]}")
        pairs = {
            (name, peer): text
            for (name, peer), text in failed.items()
            if not {name, peer} & set(alone) and self._answers(name, peer)
        }
        met = Counter(name for pair in pairs for name in pair)
        for (name, peer), text in pairs.items():
            finding = f"{name} -> {peer}: ssh fails: {text}"
            # A node that fails both as client and as server is faulty; its peers are not.
            worst = [one for one in (name, peer) if met[one] == 2 and one in self.reasons]
            named = worst if len(worst) == 1 else [one for one in (name, peer) if one in self.reasons]
            for one in named:
                self.reasons[one].append(finding)
            self.findings.append(finding)

    def _slow(self) -> tuple[dict[str, float | None], float | None, list[str]]:
        """Return the median of each node's links, the cluster's median, and the slow nodes.

        They are lower medians: in a cluster of three, one slow node must not make the others look slow.
        """
        links: dict[str, list[float]] = {name: [] for name in self.nodes}
        for one in self.measuring:
            for other, rtt in self.measurements[one].rtt_us.items():
                if rtt is not None and other in links:
                    links[one].append(rtt)
                    links[other].append(rtt)
        medians = {name: statistics.median_low(times) if times else None for name, times in links.items()}
        known = [median for median in medians.values() if median is not None]
        if not known:
            return medians, None, []
        usual = statistics.median_low(known)
        slow = {
            name: median
            for name, median in medians.items()
            if median is not None
            and median > usual * self.slow_factor
            and median - usual > self.slow_floor_us
        }
        for name, median in slow.items():
            self.remarks[name] = f"median {median:.0f} us, cluster median {usual:.0f} us"
            self.warnings.append(f"{name} is slow: {self.remarks[name]}")
        return medians, usual, list(slow)

    def _outside(self) -> None:
        """Warn of nodes outside this run that none or only some of its nodes reach."""
        nobody, some = [], []
        for name in self.outside:
            probes = self.probed_by[name]
            silent = [
                peer
                for peer in probes
                if self.measurements[peer].rtt_us[name] is None and not self._greets(peer, name)
            ]
            if silent and len(silent) == len(probes):
                nobody.append(name)
            elif silent:
                some.append(f"{name} does not answer {listed(silent)}")
        if nobody:
            self.warnings.append(f"no answer from nodes that are not in this run: {listed(nobody)}")
        if some:
            self.warnings.append(f"nodes that are not in this run: {listed(some)}")

    def _losses(self) -> None:
        """Warn of the nodes that lose packets with many peers, then of other lossy pairs."""
        losses = {
            (one, other): share
            for one in self.measuring
            for other, share in self.measurements[one].loss.items()
            if other in self.reasons
        }
        lossy: dict[str, set[str]] = {}
        for one, other in losses:
            lossy.setdefault(one, set()).add(other)
            lossy.setdefault(other, set()).add(one)
        bad = []
        while lossy:
            worst = max(self.nodes, key=lambda name: len(lossy.get(name, ())))
            peers, of = lossy.pop(worst), len(self._partners(worst))
            if len(peers) < max(LOSSY_PEERS, LOSSY_SHARE * of):
                break
            shares = []
            for peer in peers:
                lossy[peer].discard(worst)
                shares += [losses.pop(pair) for pair in ((worst, peer), (peer, worst)) if pair in losses]
            self.remarks[worst] = (
                f"it loses {statistics.mean(shares):.0%} of the packets to and from {len(peers)} of "
                f"{of} peers"
            )
            bad.append(f"{worst}: {self.remarks[worst]}")
        if bad:
            self.warnings.append(listed(bad, LOSSY_NODES))
        if losses:
            named = sorted(losses, key=lambda pair: -losses[pair])
            self.warnings.append(
                "lost on the way: {}".format(
                    listed("{:.0%} from {} to {}".format(losses[pair], *pair) for pair in named)
                )
            )

    def _notes(self) -> None:
        """Warn of measurements that used another method than usual."""
        notes: dict[str, list[str]] = {}
        for name in self.measuring:
            if self.measurements[name].note:
                notes.setdefault(self.measurements[name].note, []).append(name)
        for note, names in notes.items():
            self.warnings.append(f"{listed(names)}: {note}")

    def _sample(self) -> Sample | None:
        """Return how much was measured; None if every node that could measure probed all others."""
        others = len(self.nodes) - 1
        members = set(self.nodes)
        probes = [sum(peer in members for peer in self.measurements[name].rtt_us) for name in self.measuring]
        if not probes or min(probes) == others:
            return None
        partners = [len(self._partners(name)) for name in self.nodes]
        return Sample(min(probes), others, min(partners), sum(partners) / (others * (others + 1)))

    # ---- helpers

    def _by_rank(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self.rank.__getitem__)

    def _partners(self, name: str) -> set[str]:
        """Return the nodes of the run that a node measured or was measured by."""
        return {*self.probed_by[name], *self.measurements[name].rtt_us} & self.reasons.keys()

    def _measured_beyond(self, group: list[str], dead: set[str]) -> bool:
        """Return whether a group and the others were measured; if so they were silent, or one group."""
        known = dead.union(group)
        return any(not self._partners(name) <= known for name in group)

    def _hears_nobody(self, group: list[str]) -> bool:
        """Return whether the group is one node whose link is down and whose peers are all silent."""
        own = self.measurements[group[0]]
        lonely = len(group) == 1 and own.link_up is False and len(own.rtt_us) > 0
        return lonely and all(rtt is None for rtt in own.rtt_us.values())

    def _greets(self, one: str, other: str) -> bool:
        """Return whether the sshd of `other` greeted `one`: then they talk, even if ICMP is blocked."""
        return self.measurements[one].ssh.get(other) == ""

    def _answers(self, one: str, other: str) -> bool:
        """Return whether `other` answers `one`, with its sshd if that was probed."""
        own = self.measurements[one]
        return own.rtt_us.get(other) is not None if other not in own.ssh else self._greets(one, other)

    def _groups(self, names: list[str]) -> list[list[str]]:
        """Return the groups of nodes that reach each other, the largest first, each in the order of ranks."""
        links: dict[str, set[str]] = {name: set() for name in names}
        for one in names:
            if not self.measurements[one].measured:
                continue
            for other in self.measurements[one].rtt_us:
                if other in links and other not in self.silent[one]:
                    links[one].add(other)
                    links[other].add(one)
        groups, seen = [], set()
        for name in names:
            if name in seen:
                continue
            group, front = {name}, [name]
            while front:
                fresh = links[front.pop()] - group
                group |= fresh
                front.extend(fresh)
            seen |= group
            groups.append(self._by_rank(group))
        return sorted(groups, key=len, reverse=True)

    def _suspicion(self, name: str) -> str:
        """Return the probable cause for a node that reaches nobody."""
        own = self.measurements[name]
        if own.link_up is False:
            return f"{own.link} in its container has no link: the interface or cable below it is down"
        errors = sorted(own.errors.values())
        if errors:
            return statistics.mode(errors)
        return "its fabric interface or the port of the switch may be down"

    def _root_cause(self, names: list[str], reason: str) -> None:
        """Record a cause that one or several nodes share."""
        for name in names:
            self.reasons[name].append(reason)
        self.findings.append(f"{listed(names)}: {reason}")

    def _record_pair(self, one: str, other: str, finding: str) -> None:
        """Record a fault between two nodes, for both, since either may be the cause."""
        for name in (one, other):
            self.reasons[name].append(finding)
        self.findings.append(finding)
