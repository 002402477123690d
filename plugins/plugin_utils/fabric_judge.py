# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the fabric: from what every container measured to which node is at fault, and why.

The art is in naming the fault once. Where one node of a hundred is cut off, each of the others reports it
silent, and it reports all of them silent: 198 failing pairs, one cause. So the nodes are first sorted into
groups that reach each other. Who is alone is cut off, a small group is split off, and only what remains
inside a group is told pair by pair, beginning with the node that explains most.

A pair that nobody measured says nothing: it is not silent. In a large cluster most are like that.

Pure: it reads nothing and prints nothing. Times are in microseconds.
"""

from __future__ import annotations

import statistics
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ansible_collections.rdm.provision.plugins.plugin_utils.fabric import (
    Fabric,
    Measurement,
    Pair,
    Sample,
    Verdict,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.refusal import names as listed

LOSSY_NODES = 32  # so many are listed


LOSSY_PEERS = 3  # so many lossy links, and …


LOSSY_SHARE = 0.125  # … this share of all that were measured, are the node's own fault


def judge(
    nodes: Sequence[str],
    measurements: Mapping[str, Measurement],
    slow_factor: float = 4.0,
    slow_floor_us: float = 300.0,
) -> Fabric:
    """Judge the fabric.

    Args:
        nodes: all names of the cluster in the order of ranks.
        measurements: of the nodes that take part in this run.
        slow_factor: a node is slow when its links take so many times the cluster's median …
        slow_floor_us: … and also so much longer than that.
    """
    return _Judge(nodes, measurements, slow_factor, slow_floor_us).judge()


class _Judge:
    """The steps of one judgement, and what they know of each other."""

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
        self.reasons: Dict[str, List[str]] = {name: [] for name in self.nodes}
        self.findings: List[str] = []
        self.warnings: List[str] = []
        self.measuring = [name for name in self.nodes if measurements[name].measured]
        members = set(self.nodes)
        self.rank = {name: rank for rank, name in enumerate(nodes)}
        self.remarks: Dict[str, str] = {}
        self.silent: Dict[str, Set[str]] = {}
        self.askers: Dict[str, List[str]] = {name: [] for name in nodes}
        for name in self.measuring:
            rtts = measurements[name].rtt_us
            self.silent[name] = {
                peer
                for peer, rtt in rtts.items()
                if rtt is None and peer in members and not self._greets(name, peer)
            }
            for peer in rtts:
                self.askers.setdefault(peer, []).append(name)

    def judge(self) -> Fabric:
        """Take the steps in their order: from the causes that explain most to those that explain least."""
        failed_pairs = [(one, other) for one in self.measuring for other in self._by_rank(self.silent[one])]
        explained = self._not_measured()
        explained |= self._cut_off(explained)
        self._pairs([pair for pair in failed_pairs if not explained & set(pair)])
        self._sshd(explained)
        medians, usual, slow = self._slow()
        self._outside()
        self._losses()
        self._notes()
        verdicts = {
            name: Verdict(not self.reasons[name], "; ".join(self.reasons[name])) for name in self.nodes
        }
        for name, remark in self.remarks.items():
            if verdicts[name].ok:
                verdicts[name] = Verdict(True, remark)
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

    def _not_measured(self) -> Set[str]:
        """Name the nodes that could not measure; return those of them that nobody reaches either."""
        dead = set()
        causes: Dict[str, List[str]] = {}
        for name in self.nodes:
            own = self.measurements[name]
            if own.measured:
                continue
            asked = self.askers[name]
            if (
                asked
                and own.container_state == "running"
                and not any(name in self.silent[peer] for peer in asked)
            ):
                self.warnings.append(
                    "{0} answers all that ask it, but cannot measure: {1}".format(name, own.reason)
                )
                continue
            causes.setdefault(own.reason, []).append(name)
            dead.add(name)
        for reason, names in causes.items():
            self._blame(names, reason)
        return dead

    def _cut_off(self, dead: Set[str]) -> Set[str]:
        """Name the nodes, and the groups of them, that do not reach the main part of the cluster."""
        groups = self._groups([name for name in self.nodes if name not in dead])
        several = len(groups) > 1
        main = groups[0] if several and len(groups[0]) > len(groups[1]) else []
        others = [group for group in groups if group is not main]
        groups = []
        unknown: List[List[str]] = []
        for group in others:
            silent = self._asked_beyond(group, dead) or self._hears_nobody(group)
            (groups if silent else unknown).append(group)
        if several and unknown:
            self.warnings.append(
                "{0}: measured with no node of the others that could answer: nothing is known of the way "
                "there until all pairs are measured".format(
                    listed(name for group in unknown for name in group)
                )
            )
        split = [group for group in groups if len(group) > 1]
        for group in split:
            share = "{0} of {1} nodes".format(len(group), len(self.nodes))
            self._blame(group, "reaches only {0}: the fabric is split".format(share))
        alone = [group[0] for group in groups if len(group) == 1]
        down = [name for name in alone if self.measurements[name].link_up is False]
        if not main and not split and len(down) == len(alone) - 1:
            alone = down  # each of them knows that it is cut off, so the one that is left is not at fault
        causes: Dict[str, List[str]] = {}
        for name in alone:
            causes.setdefault(self._suspicion(name), []).append(name)
        for cause, names in causes.items():
            self._blame(names, "no answer from any peer: {0}".format(cause))
        return {*alone, *(name for group in split for name in group)}

    def _pairs(self, pairs: List[Pair]) -> None:
        """Name the causes of the other failing pairs, the node that explains most of them first."""
        silent: Dict[str, Set[str]] = {}
        for one, other in pairs:
            silent.setdefault(one, set()).add(other)
            silent.setdefault(other, set()).add(one)
        left = set(pairs)
        while left:
            worst = max(self.nodes, key=lambda name: len(silent.get(name, ())))
            peers = self._by_rank(silent.get(worst, ()))
            if len(peers) < 2:
                break
            self._blame(
                [worst],
                "no answer between it and {0} ({1} of {2} peers)".format(
                    listed(peers), len(peers), len(self._partners(worst))
                ),
            )
            for peer in peers:
                silent[peer].discard(worst)
                left -= {(worst, peer), (peer, worst)}
            del silent[worst]
        for one, other in sorted(left, key=lambda pair: (self.rank[pair[0]], self.rank[pair[1]])):
            back = (other, one) in left
            if back and self.rank[other] < self.rank[one]:
                continue  # told already, the other way round
            error = self.measurements[one].errors.get(other, "")
            self._tell_pair(
                one,
                other,
                "{0} {1} {2}: no answer{3}{4}".format(
                    one,
                    "<->" if back else "->",
                    other,
                    ""
                    if back or one not in self.measurements[other].rtt_us
                    else ", though there is one the other way",
                    " ({0})".format(error) if error else "",
                ),
            )

    def _sshd(self, explained: Set[str]) -> None:
        """Name the sshds that do not answer on nodes that are otherwise reached."""
        for name in self.nodes:
            if name in explained:
                continue
            asked = {
                peer: self.measurements[peer].ssh[name]
                for peer in self.askers[name]
                if name in self.measurements[peer].ssh
                and name not in self.silent[peer]
                and peer not in explained
            }
            wrong = {peer: text for peer, text in asked.items() if text}
            if not wrong:
                continue
            if len(wrong) == len(asked):
                text = statistics.mode(sorted(wrong.values()))
                self._blame([name], "its sshd does not answer: {0}".format(text))
                continue
            for peer, text in wrong.items():
                self._tell_pair(
                    peer, name, "{0} -> {1}: the sshd does not answer: {2}".format(peer, name, text)
                )

    def _slow(self) -> Tuple[Dict[str, Optional[float]], Optional[float], List[str]]:
        """Return what each node's links take, what is usual, and who is slow.

        The lower median is used, so that in a cluster of three one slow node does not make its two
        neighbours look slow as well.
        """
        links: Dict[str, List[float]] = {name: [] for name in self.nodes}
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
            self.remarks[name] = "median {0:.0f} us, cluster median {1:.0f} us".format(median, usual)
            self.warnings.append("{0} is slow: {1}".format(name, self.remarks[name]))
        return medians, usual, list(slow)

    def _outside(self) -> None:
        """Warn of nodes outside this run that nobody in it reaches, and of those that some do not reach."""
        nobody, some = [], []
        for name in self.outside:
            asked = self.askers[name]
            silent = [
                peer
                for peer in asked
                if self.measurements[peer].rtt_us[name] is None and not self._greets(peer, name)
            ]
            if silent and len(silent) == len(asked):
                nobody.append(name)
            elif silent:
                some.append("{0} does not answer {1}".format(name, listed(silent)))
        if nobody:
            self.warnings.append("no answer from nodes that are not in this run: {0}".format(listed(nobody)))
        if some:
            self.warnings.append("nodes that are not in this run: {0}".format(listed(some)))

    def _losses(self) -> None:
        """Warn of the nodes that lose packets with many peers, then of what is lost between others."""
        losses = {
            (one, other): share
            for one in self.measuring
            for other, share in self.measurements[one].loss.items()
            if other in self.reasons
        }
        lossy: Dict[str, Set[str]] = {}
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
            self.remarks[worst] = "it loses {0:.0%} of the packets to and from {1} of {2} peers".format(
                statistics.mean(shares), len(peers), of
            )
            bad.append("{0}: {1}".format(worst, self.remarks[worst]))
        if bad:
            self.warnings.append(listed(bad, LOSSY_NODES))
        if losses:
            told = sorted(losses, key=lambda pair: -losses[pair])
            self.warnings.append(
                "lost on the way: {0}".format(
                    listed("{0:.0%} from {1} to {2}".format(losses[pair], *pair) for pair in told)
                )
            )

    def _notes(self) -> None:
        """Warn of measurements of another kind."""
        notes: Dict[str, List[str]] = {}
        for name in self.measuring:
            if self.measurements[name].note:
                notes.setdefault(self.measurements[name].note, []).append(name)
        for note, names in notes.items():
            self.warnings.append("{0}: {1}".format(listed(names), note))

    def _sample(self) -> Optional[Sample]:
        """Return how much was measured, None where everyone who could measure asked all others."""
        others = len(self.nodes) - 1
        members = set(self.nodes)
        asked = [sum(peer in members for peer in self.measurements[name].rtt_us) for name in self.measuring]
        if not asked or min(asked) == others:
            return None
        partners = [len(self._partners(name)) for name in self.nodes]
        return Sample(min(asked), others, min(partners), sum(partners) / (others * (others + 1)))

    # ---- what they share

    def _by_rank(self, names: Iterable[str]) -> List[str]:
        return sorted(names, key=self.rank.__getitem__)

    def _partners(self, name: str) -> Set[str]:
        """Return the nodes of the run with which a node was measured, by itself or by them."""
        return {*self.askers[name], *self.measurements[name].rtt_us} & self.reasons.keys()

    def _asked_beyond(self, group: List[str], dead: Set[str]) -> bool:
        """Whether anything was asked between a group and the others: then it was silent, or they were one."""
        known = dead.union(group)
        return any(not self._partners(name) <= known for name in group)

    def _hears_nobody(self, group: List[str]) -> bool:
        """Whether this is one node, its link is down, and nobody at all answers it."""
        own = self.measurements[group[0]]
        lonely = len(group) == 1 and own.link_up is False and len(own.rtt_us) > 0
        return lonely and all(rtt is None for rtt in own.rtt_us.values())

    def _greets(self, one: str, other: str) -> bool:
        """Whether the sshd of `other` greeted `one`: then they talk, even where ICMP is not let through."""
        return self.measurements[one].ssh.get(other) == ""

    def _groups(self, names: List[str]) -> List[List[str]]:
        """Return the groups that reach each other, the largest first, members in the order of ranks."""
        links: Dict[str, Set[str]] = {name: set() for name in names}
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
        """Return what is probably wrong with a node that reaches nobody."""
        own = self.measurements[name]
        if own.link_up is False:
            return "{0} in its container has no link: the interface or cable below it is down".format(
                own.link
            )
        errors = sorted(own.errors.values())
        if errors:
            return statistics.mode(errors)
        return "its fabric interface or the port of the switch may be down"

    def _blame(self, names: List[str], reason: str) -> None:
        """Note what is wrong with one node, or with several that share it."""
        for name in names:
            self.reasons[name].append(reason)
        self.findings.append("{0}: {1}".format(listed(names), reason))

    def _tell_pair(self, one: str, other: str, finding: str) -> None:
        """Note what is wrong between two nodes: neither is known to be the cause, so both are told."""
        for name in (one, other):
            self.reasons[name].append(finding)
        self.findings.append(finding)
