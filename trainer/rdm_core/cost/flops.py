# SPDX-License-Identifier: GPL-3.0-or-later
"""Parameters and FLOPs of a model, and the peaks of known accelerators. Arithmetic only, no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rdm_core.model_spec import ModelSpec

_CHECKPOINT_BYTES = 14


@dataclass(frozen=True)
class LayerSize:
    """Parameters of one layer of the pipeline.

    Args:
        name: The layer's kind, as in :meth:`ModelSpec.layer_names`.
        split: Parameters that are sharded over tensor-parallel ranks.
        whole: Parameters that every tensor-parallel rank has.
        experts: Parameters of all experts, which are sharded over the tensor and the expert axis.
        idle: Parameters of the experts that a token does not use.
        tied: Parameters of another layer: a stage with both layers holds them once.
    """

    name: str
    split: int = 0
    whole: int = 0
    experts: int = 0
    idle: int = 0
    tied: int = 0

    @property
    def total(self) -> int:
        """All parameters, including tied ones."""
        return self.split + self.whole + self.experts

    @property
    def active(self) -> int:
        """The parameters that a token uses."""
        return self.total - self.idle

    def own(self, tensor: int, expert: int = 1) -> int:
        """The parameters of one rank, given the sizes of the tensor and the expert axis."""
        return self.split // tensor + self.whole + self.own_experts(tensor, expert)

    def own_experts(self, tensor: int, expert: int = 1) -> int:
        """The part of these that belongs to experts."""
        return self.experts // (tensor * expert)


def layer_sizes(spec: ModelSpec) -> list[LayerSize]:
    """Return the size of each layer, in the pipeline's order."""
    sizes = {name: _layer_size(name, spec) for name in set(spec.layer_names())}
    return [sizes[name] for name in spec.layer_names()]


def _layer_size(name: str, spec: ModelSpec) -> LayerSize:
    words = spec.padded_vocab_size * spec.hidden_size
    positions = spec.positions * spec.hidden_size
    # Each tensor rank has the columns of its heads.
    relative = spec.relative_buckets * spec.heads
    if name.endswith("Block"):
        return _block_size(name, spec)
    if name == "FinalNorm" and spec.kind == "bert":
        # Includes the dense layer and the norm between it and the head.
        layer = spec.hidden_size * (spec.hidden_size + int(spec.has_biases))
        return LayerSize(name, whole=2 * _norm_size(spec) + layer)
    if name == "FinalNorm" and spec.head_bias:
        # The head's module may be that of the word embedding, which the bias does not belong to.
        return LayerSize(name, split=spec.padded_vocab_size, whole=_norm_size(spec))
    if name.endswith("Norm"):
        return LayerSize(name, whole=_norm_size(spec))
    if name == "Head":
        return LayerSize(name, split=words, tied=words if spec.tied_embeddings else 0)
    if name == "DecoderEmbedding":
        return LayerSize(name, split=words + relative, whole=positions, tied=words + positions)
    return LayerSize(name, split=words + relative, whole=positions)


def _norm_size(spec: ModelSpec) -> int:
    return spec.hidden_size * (2 if spec.norm == "layer" else 1)


def _block_size(name: str, spec: ModelSpec) -> LayerSize:
    """Return the size of a transformer block: norms, attention and feed-forward network."""
    hidden, bias = spec.hidden_size, int(spec.has_biases)
    attentions = 2 if name == "DecoderBlock" else 1
    # Queries, keys and values are split with their biases; the output is split without its bias.
    attention = (hidden + int(spec.has_qkv_biases)) * (spec.attention_size + 2 * spec.key_value_size)
    attention += hidden * spec.attention_size
    head_norms = 2 * spec.head_size if spec.qk_norm else 0
    into = 2 if spec.ffn == "gated" else 1
    feed_forward = (into * (hidden + bias) + hidden) * spec.ffn_size
    whole = (attentions + 1) * (hidden * bias + _norm_size(spec)) + attentions * head_norms
    if spec.experts:
        return LayerSize(
            name,
            split=attentions * attention,
            whole=whole + spec.experts * hidden,
            experts=spec.experts * feed_forward,
            idle=(spec.experts - spec.router_top_k) * feed_forward,
        )
    return LayerSize(name, split=attentions * attention + feed_forward, whole=whole)


def _cross_keys(spec: ModelSpec) -> int:
    """Return the parameters of a decoder block that compute keys and values of the encoder's output."""
    return 2 * (spec.hidden_size + int(spec.has_qkv_biases)) * spec.key_value_size


def layer_parameters(spec: ModelSpec) -> list[int]:
    """Return the parameters of each layer over all tensor ranks; tied ones count in every layer."""
    return [size.total for size in layer_sizes(spec)]


def parameters(spec: ModelSpec) -> int:
    """Return the model's parameters; tied ones count once, the padded vocabulary in full."""
    return sum(size.total - size.tied for size in layer_sizes(spec))


def active_parameters(spec: ModelSpec) -> int:
    """Return the parameters that a token uses: all but those of other experts."""
    return parameters(spec) - sum(size.idle for size in layer_sizes(spec))


def checkpoint_bytes(spec: ModelSpec) -> int:
    """Return the bytes of a checkpoint: fp32 weights, Adam's two moments, and the weights in 16 bits."""
    return parameters(spec) * _CHECKPOINT_BYTES


def flops_per_sample(spec: ModelSpec) -> float:
    """Return the FLOPs of the forward and backward pass of one sample, without recomputation.

    Each parameter is used in one multiply-add per token forward and in two backward: 6 N for a token. The
    products of queries with keys and of probabilities with values add 12 x width x keys per query and block.
    A GPT or BERT takes (6 N + 12 L h s) s, where N are the parameters that a token uses: without the other
    experts, and without a word embedding that is not tied to the head, since it is only looked up. In a T5,
    each token uses the parameters of its own side; the decoder's keys and values of the encoder's output are
    computed per encoder token. As usual, softmax and layer norms do not count, and a causal mask saves
    nothing. A window limits the keys of each query; savings by masks between documents depend on the data and
    do not count.

    Source: PaLM (Chowdhery et al. 2022), appendix B, as in nanoGPT's MFU.
    """
    if spec.kind == "t5":
        return 3.0 * sum(forward_flops(spec, size) for size in layer_sizes(spec))
    looked_up = 0 if spec.tied_embeddings else spec.padded_vocab_size * spec.hidden_size
    scores = spec.layers * spec.attention_size * _keys(spec)
    return spec.seq_length * (6.0 * (active_parameters(spec) - looked_up) + 12.0 * scores)


def _keys(spec: ModelSpec) -> int:
    """Return the number of keys for each query of a self-attention over ``seq_length`` tokens."""
    return spec.seq_length if spec.window is None else min(spec.window, spec.seq_length)


def forward_flops(spec: ModelSpec, layer: LayerSize) -> float:
    """Return the FLOPs of a layer's forward pass over one sample; all layers add up to a third of a sample's.

    Args:
        spec: The model.
        layer: One of :func:`layer_sizes`.

    Source: as :func:`flops_per_sample`.
    """
    inner, source, target = spec.attention_size, spec.seq_length, spec.decoder_length
    # The final norm may have the head's bias.
    if layer.name in ("FinalNorm", "Head"):
        return 2.0 * target * layer.total
    if layer.name.endswith("Embedding"):
        return 0.0
    if layer.name == "DecoderBlock":
        cross_keys = _cross_keys(spec)
        products = cross_keys * source + (layer.total - cross_keys) * target
        return 2.0 * products + 4.0 * inner * target * (target + source)
    scores = 4.0 * inner * source * _keys(spec) if layer.name.endswith("Block") else 0.0
    return 2.0 * layer.active * source + scores


def flops_per_token(spec: ModelSpec) -> float:
    """Return :func:`flops_per_sample` for each token that passes through the model."""
    return flops_per_sample(spec) / spec.tokens_per_sample


def megatron_tflops(
    spec: ModelSpec, *, recomputed: float, batch_size: float, seconds: float, world_size: int
) -> float:
    """Return the TFLOP/s per device that Megatron's log would show.

    Args:
        spec: The model.
        recomputed: The share of blocks that run forward twice, from 0 to 1.
        batch_size: Samples of the step.
        seconds: The time of the step.
        world_size: Number of devices.

    Source: Narayanan et al. 2021, equation 3, with recomputation counted as a fourth pass.
    """
    passes = 3 + recomputed
    hidden, length, layers = spec.hidden_size, spec.seq_length, spec.blocks
    work = 24.0 * passes * batch_size * length * layers * hidden**2
    work *= 1.0 + length / (6.0 * hidden) + spec.padded_vocab_size / (16.0 * layers * hidden)
    return work / (seconds * world_size * 1e12)


@dataclass(frozen=True)
class Accelerator:
    """A device's specification, as published by its vendor.

    Args:
        name: Its common name.
        tflops: Dense peak in bf16 (fp16 if it has no bf16), TFLOP/s.
        memory_gib: Memory that a program can use, GiB.
        pattern: Regular expression that the driver's name of the device matches.
        bf16: It supports bf16.
        fp8: It supports ``optimisation.fp8_recipe``: an NVIDIA GPU of compute capability 8.9 or higher.
    """

    name: str
    tflops: float
    memory_gib: float
    pattern: str
    bf16: bool = True
    fp8: bool = True


# The first pattern that matches counts, so longer names come first.
ACCELERATORS = (
    Accelerator("GB200", 2500.0, 184.0, r"\bGB200\b"),
    Accelerator("B200", 2250.0, 179.0, r"\bB200\b"),
    Accelerator("GH200", 989.4, 94.5, r"\bGH200\b"),
    Accelerator("H200", 989.4, 139.8, r"\bH200\b(?!.*NVL)"),
    Accelerator("H200-NVL", 835.5, 139.8, r"\bH200\b.*NVL"),
    Accelerator("H100-NVL", 835.5, 93.1, r"\bH100\b.*NVL"),
    Accelerator("H100-PCIe", 756.5, 79.6, r"\bH100\b.*PCIe"),
    Accelerator("H100", 989.4, 79.1, r"\bH100\b"),
    Accelerator("H20", 148.0, 95.1, r"\bH20\b"),
    Accelerator("A100-80", 312.0, 79.2, r"\bA100\b.*80\s?G", fp8=False),
    Accelerator("A100-40", 312.0, 39.4, r"\bA100\b", fp8=False),
    Accelerator("A800", 312.0, 79.2, r"\bA800\b", fp8=False),
    Accelerator("A40", 149.7, 44.4, r"\bA40\b", fp8=False),
    Accelerator("A30", 165.0, 23.6, r"\bA30\b", fp8=False),
    Accelerator("A10G", 70.0, 22.1, r"\bA10G\b", fp8=False),
    Accelerator("A10", 125.0, 22.2, r"\bA10\b", fp8=False),
    Accelerator("L40S", 362.1, 44.4, r"\bL40S\b"),
    Accelerator("L40", 181.0, 44.4, r"\bL40\b"),
    Accelerator("L4", 121.0, 22.0, r"\bL4\b"),
    Accelerator("RTX4090", 165.2, 23.6, r"\bRTX\s?4090\b"),
    Accelerator("RTX3090", 71.0, 23.6, r"\bRTX\s?3090\b", fp8=False),
    Accelerator("V100-32", 125.0, 31.7, r"\bV100\b.*32\s?G", bf16=False, fp8=False),
    Accelerator("V100-16", 125.0, 15.7, r"\bV100\b", bf16=False, fp8=False),
    Accelerator("MI355X", 2500.0, 287.0, r"\bMI355X\b", fp8=False),
    Accelerator("MI325X", 1307.4, 255.0, r"\bMI325X\b", fp8=False),
    Accelerator("MI300X", 1307.4, 191.0, r"\bMI300X\b", fp8=False),
    # One GCD. A card has two, and programs see each as a device.
    Accelerator("MI250X", 191.5, 63.9, r"\bMI250X\b", fp8=False),
    Accelerator("MI250", 181.0, 63.9, r"\bMI250\b", fp8=False),
    Accelerator("MI210", 181.0, 63.9, r"\bMI210\b", fp8=False),
    Accelerator("MI100", 92.3, 31.9, r"\bMI100\b", fp8=False),
)


def find_accelerator(name: str) -> Accelerator | None:
    """Return the accelerator of this name, ours or the driver's (``NVIDIA H200``), or None."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for accelerator in ACCELERATORS:
        if plain == re.sub(r"[^a-z0-9]", "", accelerator.name.lower()):
            return accelerator
    for accelerator in ACCELERATORS:
        if re.search(accelerator.pattern, name.replace("-", " "), re.IGNORECASE):
            return accelerator
    return None


def peak_tflops(name: str) -> float | None:
    """Return the dense bf16 peak of a device in TFLOP/s, None if unknown.

    Args:
        name: The driver's name of the device.
    """
    accelerator = find_accelerator(name)
    return accelerator.tflops if accelerator else None
