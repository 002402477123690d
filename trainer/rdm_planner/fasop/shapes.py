# SPDX-License-Identifier: GPL-3.0-or-later
"""The models and nodes of FASOP's cases, with its authors' measurements."""

from __future__ import annotations

from dataclasses import dataclass

from rdm_core.errors import TrainerError
from rdm_planner.nodes import NodeKind


@dataclass(frozen=True)
class Shape:
    """A model as FASOP knows it.

    Args:
        name: The name in FASOP's profiles.
        hidden: Width.
        seq: Tokens per sample.
        layers: Transformer blocks; for a T5, of encoder and decoder together.
        vocab: Vocabulary size.
        heads: Attention heads.
        batch: Samples per step.
    """

    name: str
    hidden: int
    seq: int
    layers: int
    vocab: int
    heads: int
    batch: int

    def __post_init__(self) -> None:
        if self.name == "T5" and (self.layers < 4 or self.layers % 2):
            raise TrainerError(
                f"A T5 of {self.layers} blocks cannot be cut into stages as FASOP does; encoder and decoder "
                "must have as many blocks as each other, and at least 2."
            )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each layer in order, two more than the blocks."""
        if self.name == "T5":
            half = self.layers // 2
            return ("embedding", *["encoder"] * half, "embedding", *["decoder"] * half)
        return ("embedding", *["layer"] * self.layers, "post")


SHAPES = {
    "gpt2XL": Shape("gpt2XL", 1600, 1024, 48, 50257, 16, 64),
    "bert": Shape("bert", 1024, 512, 24, 30522, 16, 256),
    "T5": Shape("T5", 1024, 512, 48, 30522, 32, 128),
}

# Amazon's p4d.24xlarge and g5.24xlarge.
A100 = NodeKind("A100", gpus=4, inter=40e9, intra=1840e9, memory_gib=39.59, price=32.7726)
A10 = NodeKind("A10", gpus=4, inter=40e9, intra=128e9, memory_gib=22.20, price=8.144)

# Name → (model, nodes). With two kinds of nodes, FASOP tries the cyclic rotations.
CASES: dict[str, tuple[Shape, tuple[NodeKind, ...]]] = {
    "gpt2XL": (SHAPES["gpt2XL"], (A10,) * 8),
    "gpt2XL-heterogeneous": (SHAPES["gpt2XL"], (A100, *[A10] * 7)),
    "bert": (SHAPES["bert"], (A10,) * 4),
    "bert-heterogeneous": (SHAPES["bert"], (A100, *[A10] * 3)),
    "T5": (SHAPES["T5"], (A10,) * 8),
}

# (model, GPU, tensor degree) → seconds of a forward pass at micro-batch 1, as FASOP's authors measured them:
# for the embedding, a block and the head; for each half of a T5, its embedding, a block, and the last block
# with the layers after it.
_MEASURED: dict[tuple[str, str, int], tuple[float, ...]] = {
    ("T5", "A100", 1): (0.000190997, 0.001170739, 0.0011881197, 0.000220585, 0.002099025, 0.0021149037),
    ("T5", "A100", 2): (
        0.000410318,
        0.001364652,
        0.001383654,
        0.000517321,
        0.00242337,
        0.0024399401,
    ),
    ("T5", "A100", 4): (0.000441623, 0.001504668, 0.0015243614, 0.000487876, 0.002515952, 0.0025322598),
    ("T5", "A10", 1): (0.000212169, 0.001450825, 0.0014675381, 0.000187683, 0.002590394, 0.0026067972),
    ("T5", "A10", 2): (0.00040257, 0.001484366, 0.0015053945, 0.00058794, 0.002575711, 0.0025957858),
    ("T5", "A10", 4): (0.000471425, 0.001431004, 0.0014520802, 0.000588989, 0.002607838, 0.0026276983),
    ("bert", "A100", 1): (0.000230861, 0.001443982, 0.001056433),
    ("bert", "A100", 2): (0.000458074, 0.001640034, 0.000849152),
    ("bert", "A100", 4): (0.000467277, 0.001612544, 0.000859308),
    ("bert", "A10", 1): (0.000229263, 0.002081418, 0.00212672),
    ("bert", "A10", 2): (0.00049963, 0.001829433, 0.001205842),
    ("bert", "A10", 4): (0.000613117, 0.001926255, 0.000994603),
    ("gpt2XL", "A100", 1): (0.000159, 0.0016384583333333331, 0.00073),
    ("gpt2XL", "A100", 2): (0.000570774, 0.0015983830416666667, 0.000728),
    ("gpt2XL", "A100", 4): (0.000749588, 0.001452470833333333, 0.000732),
    ("gpt2XL", "A10", 1): (0.000297, 0.0023422291666666665, 0.0021184),
    ("gpt2XL", "A10", 2): (0.000558376, 0.0016447205833333336, 0.0020587),
    ("gpt2XL", "A10", 4): (0.001030207, 0.0017473151875, 0.0020743),
}


def measured_seconds(shape: Shape, gpu: str, tensor: int) -> list[float]:
    """Return the seconds of each layer's forward pass at micro-batch 1.

    Args:
        shape: The model.
        gpu: ``A10`` or ``A100``.
        tensor: Tensor degree: 1, 2 or 4.

    Raises:
        KeyError: This combination was not measured.
    """
    measured = _MEASURED[shape.name, gpu, tensor]
    if shape.name != "T5":
        return [measured[0], *[measured[1]] * shape.layers, measured[2]]
    half = shape.layers // 2 - 1
    embedding, encoder, last_encoder, second, decoder, last_decoder = measured
    return [embedding, *[encoder] * half, last_encoder, second, *[decoder] * half, last_decoder]


def layer_seconds(shape: Shape, gpu: str, tensor: int, micro_batch: int) -> list[float]:
    """Return each layer's forward plus backward time in seconds; backward takes twice as long as forward.

    Raises:
        KeyError: This combination was not measured.
    """
    scales = {kind: _scale(shape.name, gpu, kind, micro_batch) for kind in set(shape.kinds)}
    known = measured_seconds(shape, gpu, tensor)
    return [scales[kind] * 3 * seconds for kind, seconds in zip(shape.kinds, known, strict=True)]


def _scale(model: str, gpu: str, kind: str, size: int) -> float:
    """Return a layer's time at a micro-batch size, relative to its time at 1."""
    if model == "gpt2XL":
        return 1.0 if gpu == "A100" and kind != "layer" else float(size)
    if kind == "post":
        return float(size)
    if model == "bert" and gpu == "A10":
        return max(1.0, size / 4)
    factors = _FACTORS[model, gpu, kind]
    value = 1.0
    for at, factor in factors.items():
        if at <= size:
            value = factor
    last = max(factors)
    return value * size / last if size > last else value


# Micro-batch → a layer's time from there on, relative to its time at 1; beyond the last one it is linear.
_FACTORS: dict[tuple[str, str, str], dict[int, float]] = {
    ("bert", "A100", "embedding"): {8: 1.385, 16: 1.385 * 1.589, 32: 1.385 * 1.589 * 1.565},
    # FASOP's factor for 16 builds on 1.235, although its factor for 8 is 1.236.
    ("bert", "A100", "layer"): {8: 1.236, 16: 1.235 * 1.658},
    ("T5", "A10", "encoder"): {1: 1.0, 2: 1.140},
    ("T5", "A10", "decoder"): {1: 1.0, 2: 1.094},
    ("T5", "A10", "embedding"): {2: 1.2, 4: 1.2**2, 8: 1.2**2 * 1.4, 16: 1.2**2 * 1.4 * 1.6},
    ("T5", "A100", "encoder"): {4: 1.173, 8: 1.173 * 1.489},
    ("T5", "A100", "decoder"): {4: 1.142, 8: 1.142 * 1.683},
    ("T5", "A100", "embedding"): {
        2: 1.386,
        4: 1.386 * 1.244,
        8: 1.386 * 1.244 * 1.356,
        16: 1.386 * 1.244 * 1.356 * 1.055,
        32: 1.386 * 1.244 * 1.356 * 1.055 * 1.368,
    },
}
