# SPDX-License-Identifier: GPL-3.0-or-later
"""A pipeline's step, slow and obvious: the references for ``rdm_planner``'s schedules."""

from __future__ import annotations

from rdm_core.pipeline_schedule import Pass, passes


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


def by_hand(
    work: list[tuple[float, float]], stages: int, micro_batches: int, eager: int = 0
) -> dict[tuple[int, Pass], float]:
    """Return when each pass ends: each stage in turn executes what it can, until nothing is left."""
    chunks = len(work) // stages
    left = {stage: list(passes(stage, stages, chunks, micro_batches, eager)) for stage in range(stages)}
    free = [0.0] * stages
    ends: dict[tuple[int, Pass], float] = {}

    def input_of(stage: int, one: Pass) -> tuple[int, Pass] | None:
        virtual = one.chunk * stages + stage
        if not one.is_forward and virtual == len(work) - 1:
            return stage, one._replace(is_forward=True)
        source = virtual - 1 if one.is_forward else virtual + 1
        return None if source < 0 else (source % stages, one._replace(chunk=source // stages))

    while any(left.values()):
        for stage, order in left.items():
            while order:
                source = input_of(stage, order[0])
                if source is not None and source not in ends:
                    break
                one = order.pop(0)
                begin = max(free[stage], 0.0 if source is None else ends[source])
                free[stage] = begin + work[one.chunk * stages + stage][not one.is_forward]
                ends[stage, one] = free[stage]
    return ends
