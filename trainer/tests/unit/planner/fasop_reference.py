# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's cost model and heuristic, slow and obvious: the reference for ``rdm_planner.fasop``.

Written from the mathematics of the paper's cost model (Hwang et al., "FASOP: Fast yet Accurate Automated
Search for Optimal Parallelization of Transformers on Heterogeneous GPU Clusters", HPDC 2024) and of its
public program, whose slips are reproduced here and marked. Loops over scalars, nothing cached, nothing cut.
"""

from __future__ import annotations

from dataclasses import dataclass

Cut = list[int]
Costs = dict[str, list[float]]
Profiles = dict[tuple[str, str, int], list[float]]

BITS = 16
A100_INTRA = 1840e9


@dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    seq: int
    layers: int
    vocab: int
    heads: int
    batch: int


@dataclass(frozen=True)
class Node:
    gpu: str
    inter: float
    intra: float


A100 = Node("A100", 40e9, A100_INTRA)
A10 = Node("A10", 40e9, 128e9)

GPT2_XL = Model("gpt2XL", 1600, 1024, 48, 50257, 16, 64)
BERT = Model("bert", 1024, 512, 24, 30522, 16, 256)
T5 = Model("T5", 1024, 512, 48, 30522, 32, 128)


@dataclass(frozen=True)
class Estimate:
    """One layout's times in seconds, its partition, and whether it runs out of memory."""

    micro_batch: int
    tensor: int
    data: int
    pipeline: int
    nodes: tuple[str, ...]
    partition: tuple[int, ...]
    seconds: float
    pipe: float
    data_reduce: float
    embedding_reduce: float
    memory: float
    out_of_memory: bool


def kinds(model: Model) -> list[str]:
    """Return the kind of each layer in the list to partition."""
    if model.name == "T5":
        half = model.layers // 2
        return ["embedding"] + ["encoder"] * half + ["embedding"] + ["decoder"] * half
    return ["embedding"] + ["layer"] * model.layers + ["post"]


def scale(model: Model, gpu: str, kind: str, b: int) -> float:
    """Return a layer's time at micro-batch b, relative to its time at 1."""
    if model.name == "gpt2XL":
        return 1.0 if gpu == "A100" and kind != "layer" else float(b)
    if model.name == "bert":
        if kind == "post":
            return float(b)
        if gpu == "A10":
            return max(1.0, b / 4)
        if kind == "embedding":
            return _steps(b, {8: 1.385, 16: 1.589, 32: 1.565}, 8, 32)
        # The paper's program has 1.236 for 8, but computes 16 from 1.235.
        if b < 8:
            return 1.0
        return 1.236 if b == 8 else 1.235 * 1.658 * (1 if b == 16 else b / 16)
    if gpu == "A10":
        if kind in ("encoder", "decoder"):
            at_two = 1.140 if kind == "encoder" else 1.094
            return 1.0 if b == 1 else at_two if b == 2 else at_two * b / 2
        value = {1: 1.0, 2: 1.2, 4: 1.2 * 1.2, 8: 1.2 * 1.2 * 1.4, 16: 1.2 * 1.2 * 1.4 * 1.6}
        return value[b] if b in value else value[16] * b / 16
    if kind == "encoder":
        return _steps(b, {4: 1.173, 8: 1.489}, 4, 8)
    if kind == "decoder":
        return _steps(b, {4: 1.142, 8: 1.683}, 4, 8)
    return _steps(b, {2: 1.386, 4: 1.244, 8: 1.356, 16: 1.055, 32: 1.368}, 2, 32)


def _steps(b: int, factors: dict[int, float], first: int, last: int) -> float:
    """Multiply the factors up to b; 1 before the first, in proportion to b after the last."""
    if b < first:
        return 1.0
    value = 1.0
    for at in sorted(factors):
        if at <= b:
            value *= factors[at]
    return value * b / last if b > last else value


class Case:
    """A model on nodes in their order, M GPUs each, with profiles of forward seconds at micro-batch 1."""

    def __init__(self, model: Model, nodes: list[Node], profiles: Profiles, gpus: int = 4) -> None:
        self.model, self.nodes, self.profiles, self.gpus = model, nodes, profiles, gpus
        self.world = len(nodes) * gpus

    def costs(self, gpu: str, tensor: int, b: int) -> list[float]:
        known = self.profiles[self.model.name, gpu, tensor]
        return [
            scale(self.model, gpu, kind, b) * 3 * seconds
            for kind, seconds in zip(kinds(self.model), known, strict=True)
        ]

    def node(self, i: int, j: int, k: int, t: int, d: int) -> int:
        return (k + t * j + t * d * i) // self.gpus

    def link(self, a: int, b: int) -> float:
        if a == b:
            return self.nodes[a].intra
        return min(self.nodes[a].inter, self.nodes[b].inter)

    def boundaries(self, t: int, d: int, p: int, b: int) -> list[float]:
        result: list[float] = []
        for i in range(p - 1):
            worst = 0.0
            for j in range(d):
                bandwidth = []
                for k in range(t):
                    a, z = self.node(i, j, k, t, d), self.node(i + 1, j, k, t, d)
                    bandwidth.append(self.link(a, z) / 3.5 if a == z else self.link(a, z) / (d * t * 1.05))
                worst = max(worst, b * self.model.seq * self.model.hidden * BITS / min(bandwidth))
            result.append(worst)
        return result

    def group(self, stage: int, p: int) -> list[int]:
        n = len(self.nodes)
        if p < n:
            return list(range(int(stage * n / p), int((stage + 1) * n / p)))
        return [int(stage / (p / n))]

    def gpu(self, stage: int, p: int) -> str:
        return "A10" if any(self.nodes[n].gpu == "A10" for n in self.group(stage, p)) else "A100"

    def stage_sums(self, partition: Cut, gpus: list[str], costs: Costs) -> list[float]:
        times: list[float] = []
        at = 0
        for i, count in enumerate(partition):
            times.append(sum(costs[gpus[i]][at : at + count]))
            at += count
        return times

    def balanced(self, partition: Cut, gpus: list[str], costs: Costs, boundary: list[float]) -> list[float]:
        """Return what the heuristic balances: an inner stage's time has the boundary before it, too."""
        last = len(partition) - 1
        return [
            time + (boundary[i - 1] if 0 < i < last else 0.0)
            for i, time in enumerate(self.stage_sums(partition, gpus, costs))
        ]

    def minmax(
        self, layers: int, p: int, gpus: list[str], costs: Costs, boundary: list[float], slips: bool = True
    ) -> tuple[list[int], list[float]]:
        """Return the heuristic's partition, and the stage times that it passes on."""
        partition = [layers // p] * p
        for i in range(layers % p):
            partition[i - 1] += 1
        history: list[list[int]] = []
        last_move: tuple[int, int] | None = None
        last_max = 0.0
        while True:
            times = self.balanced(partition, gpus, costs, boundary)
            largest = max(times)
            if last_move is not None and (
                largest > last_max or (largest == last_max and partition in history[:-1])
            ):
                source, target = last_move
                partition[source] += 1
                partition[target] -= 1
                return partition, self.stage_sums(partition, gpus, costs)
            source, target = times.index(largest), times.index(min(times))
            if source in (0, p - 1) and partition[source] == 2:
                stale = self.stage_sums(partition, gpus, costs)
                if last_move is None:
                    return partition, stale
                if slips:
                    # Slip: meant to undo the last move, but undoes another one, and keeps the old times.
                    partition[source] += 1
                    partition[target] -= 1
                    return partition, stale
                source, target = last_move
                partition[source] += 1
                partition[target] -= 1
                return partition, self.stage_sums(partition, gpus, costs)
            if partition[source] <= 1:
                return partition, self.stage_sums(partition, gpus, costs)
            partition[source] -= 1
            partition[target] += 1
            history.append(list(partition))
            last_move, last_max = (source, target), largest

    def evaluate(
        self, t: int, d: int, p: int, b: int, partition: list[int] | None = None, slips: bool = True
    ) -> Estimate:
        model = self.model
        m = model.batch // d // b
        costs = {gpu: self.costs(gpu, t, b) for gpu in {node.gpu for node in self.nodes}}
        gpus = [self.gpu(i, p) for i in range(p)]
        boundary = self.boundaries(t, d, p, b)
        layers = model.layers + 2
        if partition is not None:
            times = self.stage_sums(partition, gpus, costs)
            ends = simulate(times, boundary, m)
        elif p == 1:
            partition, ends = [layers], [m * sum(costs[gpus[0]])]
        elif model.name == "T5":
            ends, partition = self._t5(p, gpus, costs, boundary, m, slips)
        else:
            partition, times = self.minmax(layers, p, gpus, costs, boundary, slips)
            ends = simulate(times, boundary, m)
        reduce = [self.data_reduce(partition, t, d, gpu) for gpu in gpus]
        embedding = self.embedding_reduce(t, d, p)
        seconds = max(end + extra for end, extra in zip(ends, reduce, strict=True)) + embedding
        memory, full = self.memory(partition, t, p, b, m)
        return Estimate(
            b, t, d, p, tuple(n.gpu for n in self.nodes), tuple(partition), seconds, ends[0], reduce[0],
            embedding, memory, full,
        )  # fmt: skip

    def _t5(
        self, p: int, gpus: list[str], costs: Costs, boundary: list[float], m: int, slips: bool
    ) -> tuple[list[float], list[int]]:
        half = (self.model.layers + 2) // 2
        best: tuple[list[float], list[int]] | None = None
        for first in range(1, min(p, half)):
            if p - first > self.model.layers // 2:
                continue
            parts: list[int] = []
            for stages in (first, p - first):
                # Slip: the decoder's half is balanced with the encoder's costs, which come first.
                parts += self.minmax(half, stages, gpus, costs, boundary, slips)[0]
            ends = simulate(self.stage_sums(parts, gpus, costs), boundary, m)
            if best is None or max(ends) < max(best[0]) * (1 - 1e-12):
                best = ends, parts
        assert best is not None
        return best

    def data_reduce(self, partition: list[int], t: int, d: int, gpu: str) -> float:
        if d == 1:
            return 0.0
        model = self.model
        held = kinds(model)[: partition[0]]
        blocks = sum(kind not in ("embedding", "post") for kind in held)
        parameters = blocks * (12 * model.hidden**2 + 20800) / t
        if blocks < len(held):
            parameters += model.hidden * model.vocab
        ring = [self.node(0, j, t - 1, t, d) for j in range(d)]
        bandwidth = min(self.link(ring[j], ring[(j + 1) % d]) for j in range(d))
        if t * d >= self.gpus:
            bandwidth /= t
        elif t > 1 and gpu == "A10":
            bandwidth /= self.gpus / d
        return 2 * (d - 1) * parameters * BITS / (d * bandwidth)

    def embedding_reduce(self, t: int, d: int, p: int) -> float:
        if p == 1 or self.model.name == "T5":
            return 0.0
        bandwidth = min(
            self.link(self.node(0, d - 1, k, t, d), self.node(p - 1, d - 1, k, t, d)) for k in range(t)
        ) / min(d, self.gpus)
        return 2 * self.model.hidden * self.model.vocab * BITS / (2 * bandwidth) / t

    def memory(self, partition: list[int], t: int, p: int, b: int, m: int) -> tuple[float, bool]:
        model = self.model
        h, s, v, a = model.hidden, model.seq, model.vocab, model.heads
        q = min(p, m)
        at, most, full = 0, 0.0, False
        for stage, count in enumerate(partition):
            parameters = activations = 0.0
            for kind in kinds(model)[at : at + count]:
                if kind == "embedding":
                    parameters += h * v / t
                    activations += s * b * h * p * q / t
                elif kind == "post":
                    parameters += h * v / t
                    activations += 4 * s * b * h / t + 4 * s * b * v / t
                else:
                    parameters += 12 * h * h / t
                    activations += s * b * q * h * (10 + 24 / t + 5 * a * s / (h * t))
            at += count
            gib = (parameters * 18 + activations) / 1024**3 * 1.10
            group = self.group(stage, p)
            # Slip: the last node of a stage on several nodes is left out.
            for node in group[:-1] if p < len(self.nodes) else group:
                limit = 39.59 if self.nodes[node].intra == A100_INTRA else 22.20
                full = full or gib > limit
            most = max(most, gib)
        return most, full

    def search(self, slips: bool = True) -> list[Estimate]:
        """Evaluate every layout on these nodes."""
        found: list[Estimate] = []
        for t in (1, 2, 4):
            if self.gpus % t:
                continue
            for d in range(1, self.world // t + 1):
                if self.world // t % d or self.model.batch % d or self.world // t // d > self.model.layers:
                    continue
                per_replica = self.model.batch // d
                for b in range(1, per_replica + 1):
                    if per_replica % b == 0:
                        found.append(self.evaluate(t, d, self.world // t // d, b, slips=slips))
        return sorted(found, key=lambda e: e.seconds)


def rotations(nodes: list[Node]) -> list[list[Node]]:
    """Return the orders of nodes that FASOP tries: all cyclic rotations when there are two kinds."""
    if len(set(nodes)) == 1:
        return [nodes]
    return [nodes[i:] + nodes[:i] for i in range(len(nodes))]


def simulate(times: list[float], boundary: list[float], m: int) -> list[float]:
    """Return when each stage ends its last backward: 1F1B whose sends block until the receiver is ready."""
    p = len(times)
    if p == 1:
        return [m * times[0]]
    f, g = [c / 3 for c in times], [2 * c / 3 for c in times]
    sf, sb = [0.0] * p, [0.0] * p
    sf[0], sb[p - 1] = boundary[0], boundary[p - 2]
    w = [min(p - i - 1, m) for i in range(p)]
    fe, se, rr, re, be, qe, qr, ge = ([[0.0] * m for _ in range(p)] for _ in range(8))
    for j in range(m):
        for i in range(p):
            if j >= w[i]:
                continue
            if i == 0:
                start = se[0][j - 1] if j else 0.0
            else:
                start = re[i][0] if j == 0 else max(se[i][j - 1], re[i][j])
            fe[i][j] = start + f[i]
            if i > 0 and j < w[i] - 1:
                rr[i][j + 1] = fe[i][j]
            se[i][j] = (fe[i][j] if j == 0 else max(fe[i][j], rr[i + 1][j])) + sf[i]
            re[i + 1][j] = se[i][j]
    for j in range(m):
        for i in range(p):
            k = j + w[i]
            if k > m - 1:
                continue
            if j == 0:
                start = max(se[i][k - 1] if k else 0.0, re[i][k])
            elif i == 0:
                start = be[0][j - 1]
            else:
                start = max(qe[i][j - 1], re[i][k])
            fe[i][k] = start + f[i]
            if i < p - 1:
                qr[i][j] = fe[i][k]
                se[i][k] = max(fe[i][k], rr[i + 1][k] if j or k else 0.0) + sf[i]
                re[i + 1][k] = se[i][k]
        for i in reversed(range(p)):
            k = j + w[i]
            if k > m - 1:
                continue
            start = max(se[i][k] if i > 0 else 0.0, ge[i][j], fe[i][k])
            be[i][j] = start + g[i]
            if i > 0:
                if k + 1 < m:
                    rr[i][k + 1] = be[i][j]
                elif j + 1 < m:
                    qr[i][j + 1] = be[i][j]
                qe[i][j] = max(be[i][j], qr[i - 1][j]) + sb[i]
                ge[i - 1][j] = qe[i][j]
            elif j == m - 1 - w[0] and j + 1 < m:
                qr[0][j + 1] = be[0][j]
    for j in range(m):
        for i in reversed(range(p)):
            if j < m - w[i]:
                continue
            start = max(be[i][j - 1] if j else 0.0, ge[i][j], qe[i][j - 1] if j else 0.0)
            be[i][j] = start + g[i]
            if j < m - 1:
                qr[i][j + 1] = be[i][j]
            if i > 0:
                qe[i][j] = max(be[i][j], qr[i - 1][j]) + sb[i]
                ge[i - 1][j] = qe[i][j]
    return [be[i][m - 1] for i in range(p)]
