# SPDX-License-Identifier: GPL-3.0-or-later
"""What the benchmarks of training measure: shapes of models, layouts, and legs, which have both."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A model and how one device trains it: a GPT, or a Llama if it has groups."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    micro_batch: int
    stages: tuple[str, ...]  # blocks of each stage; the head on the last takes as long as some blocks
    vocabulary: int = 50257
    groups: int | None = None
    ffn: int | None = None

    @property
    def padded_vocabulary(self) -> int:
        """The vocabulary padded to a multiple of 128."""
        return -(-self.vocabulary // 128) * 128

    def partition(self, stages: int) -> str:
        """Return the blocks of each stage, or of each chunk of the stages, where known."""
        for cut in self.stages:
            blocks = [int(count) for count in cut.split("-")]
            if (len(blocks), sum(blocks)) == (stages, self.layers):
                return cut
        return "even"


SHAPES = {
    "GPT-345M": Shape(24, 1024, 16, 1024, 32, ("14-10", "7-7-7-3", "5-4-4-3-5-3", "4-3-3-3-4-3-3-1")),
    "GPT-2 XL 1.5B": Shape(48, 1600, 25, 1024, 16, ("25-23", "13-12-12-11")),
    "GPT-1.3B": Shape(24, 2048, 16, 2048, 8, ("13-11", "7-6-6-5", "4-3-3-3-3-3-3-2")),
    # As many blocks as fit on one device with the plain loop's; its head takes as long as 2.4 blocks.
    # With `--blocks 32` it is the whole model.
    "Llama-3 8B x 6": Shape(
        6,
        4096,
        32,
        4096,
        2,
        ("4-2", "2-2-2-0", "17-15", "9-9-8-6", "5-5-4-4-4-4-4-2"),
        vocabulary=128256,
        groups=8,
        ffn=14336,
    ),
}
# Measured only by name: the host takes longer to launch their kernels than a large GPU to run them.
SMALL = {
    "GPT-16M": Shape(4, 256, 4, 1024, 4, ()),
    "GPT-125M": Shape(12, 768, 12, 1024, 4, ()),
}
QUICK = {
    "tiny": Shape(4, 64, 4, 64, 4, ("3-1",), vocabulary=500),
    "tiny Llama": Shape(4, 64, 4, 64, 4, ("3-1",), vocabulary=500, groups=2, ffn=128),
}


@dataclass(frozen=True)
class Layout:
    """How a model is parallelised, and how a device's share of the batch is split into micro-batches."""

    name: str
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1

    @classmethod
    def parse(cls, name: str) -> Layout:
        """Return the layout of a name such as `TP 2 PP 2 DP 2`, or `one`.

        Raises:
            ValueError: It is no such name.
        """
        axes = {"TP": "tensor", "PP": "pipeline", "DP": "data", "CP": "context"}
        found = re.findall(r"(TP|PP|DP|CP) ([1-9]\d*)", name)
        degrees = {axes[axis]: int(degree) for axis, degree in found}
        written = " ".join(f"{axis} {degree}" for axis, degree in found)
        if name != (written or "one") or len(degrees) < len(found):
            raise ValueError(f"{name!r} is no layout such as 'one', 'DP 2' or 'TP 2 PP 2 DP 2'")
        return cls(name, **degrees)

    @property
    def world(self) -> int:
        """The number of processes, one for each device."""
        return self.tensor * self.pipeline * self.data * self.context

    @property
    def larger(self) -> int:
        """Factor of one device's micro-batch: a device computes its part of each micro-batch."""
        return self.tensor


LAYOUTS = (
    "one,DP 2,TP 2,PP 2,CP 2,DP 4,TP 4,PP 4,CP 4,TP 2 CP 2,TP 2 DP 2,TP 2 PP 2,PP 2 DP 2,DP 8,TP 8,PP 8,"
    "TP 4 DP 2,TP 4 PP 2,TP 2 DP 4,TP 2 PP 4,PP 4 DP 2,PP 2 DP 4,TP 2 PP 2 DP 2"
)


@dataclass(frozen=True)
class Leg:
    """A measurement, by one set of processes."""

    shape_name: str
    shape: Shape
    layout: Layout
    accumulation: int
    rounds: int
    steps: int
    warm_up: int
    precision: str
    compiled: bool
    plain: bool
    masters: bool
    overrides: dict[str, Any]
    engine: str = "deepspeed"
    profile: str | None = None
    ours: bool = True  # measure our engine
    rival: str | None = None  # measured instead of our engine

    @classmethod
    def from_json(cls, text: str) -> Leg:
        """Return the leg whose fields JSON has."""
        fields = json.loads(text)
        return cls(**fields | {"shape": Shape(**fields["shape"]), "layout": Layout(**fields["layout"])})

    @property
    def virtual_pipeline(self) -> int:
        """Chunks of each stage; 1 without a pipeline, whatever `--set` says."""
        if self.layout.pipeline == 1:
            return 1
        is_eager = "parallel.eager_forwards" in self.overrides
        has_blocks = self.shape.layers >= 2 * self.layout.pipeline
        interleaves = self._can_interleave and has_blocks and not is_eager
        return int(self.overrides.get("parallel.virtual_pipeline", 2 if interleaves else 1))

    @property
    def _can_interleave(self) -> bool:
        return self.engine == "native" and self.rival is None

    @property
    def _smaller(self) -> int:
        """Divisor of one device's micro-batch; there are as many times more micro-batches."""
        # An odd micro-batch stays whole.
        is_halved = self.layout.pipeline == 2 and not self._can_interleave
        return math.gcd(2, self.shape.micro_batch * self.layout.larger) if is_halved else 1

    @property
    def micro_batch(self) -> int:
        """Samples in a micro-batch, unless `--set` changes them."""
        return self.shape.micro_batch * self.layout.larger // self._smaller

    @property
    def micro_batches(self) -> int:
        """Micro-batches in a step of one data-parallel rank, unless `--set` changes them."""
        return self.accumulation * self._smaller * self.layout.pipeline

    @property
    def global_batch(self) -> int:
        """Samples in a step."""
        return self.micro_batch * self.micro_batches * self.layout.data

    def batch(self, way: str) -> tuple[int, int]:
        """Return micro-batch and micro-batches of `ours`, `plain` or a rival; `--set` may change them."""
        optimisation = self.configuration()["optimisation"]
        size = int(optimisation["micro_batch_size"])
        if way != "ours":
            return size, self.micro_batches
        return size, int(optimisation["global_batch_size"]) // (size * self.layout.data)

    def samples(self, way: str) -> int:
        """Return the samples in a step."""
        size, count = self.batch(way)
        return size * count * self.layout.data

    def configuration(self) -> dict[str, Any]:
        """The trainer's configuration, as the mapping that a YAML file would hold."""
        shape = self.shape
        configuration: dict[str, Any] = {
            "name": "throughput",
            "engine": self.engine,
            "model": {
                "kind": "gpt",
                "layers": shape.layers,
                "hidden_size": shape.hidden,
                "attention_heads": shape.heads,
                "seq_length": shape.sequence,
                "vocab_size": shape.vocabulary,
                "make_vocab_size_divisible_by": 128 // self.layout.tensor,
            },
            "parallel": {
                "tensor": self.layout.tensor,
                "pipeline": self.layout.pipeline,
                "context": self.layout.context,
                "partition": shape.partition(self.layout.pipeline * self.virtual_pipeline),
            },
            "optimisation": {
                "micro_batch_size": self.micro_batch,
                "global_batch_size": self.global_batch,
                "train_iterations": 1_000_000,
                "precision": self.precision,
                "clip_grad": 1.0,
                "compile": self.compiled,
            },
            "data": {"mock": True},
        }
        if shape.groups:
            configuration["model"] |= {
                "query_groups": shape.groups,
                "ffn_hidden_size": shape.ffn,
                "position_embedding": "rope",
                "rope_theta": 500000.0,
                "norm": "rmsnorm",
                "activation": "swiglu",
                "biases": "none",
                "tied_embeddings": False,
            }
        for key, value in self.overrides.items():
            section, _, name = key.partition(".")
            configuration.setdefault(section, {})[name] = value
        configuration["parallel"]["virtual_pipeline"] = self.virtual_pipeline
        return configuration
