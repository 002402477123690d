# SPDX-License-Identifier: GPL-3.0-or-later
"""Other trainers of the same models, for benchmarks/train_throughput.py.

Each is built from its own parts as its own training program builds it: its model, mixed precision, fusions or
compiler, gradient buffers, clipping and optimizer. Left out are what its program does besides (data loading,
logs, checkpoints). Activations are not recomputed, as in ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from benchmarks.plain_loop import attention_kernels

LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 1e-4, (0.9, 0.999), 1e-8, 0.01, 1.0


class Training(NamedTuple):
    """What a rival trains.

    Attributes:
        shape: one of training_legs.py: a GPT, or a Llama if it has groups.
        batches: micro-batches (tokens, labels) on the device, both int64 [batch, sequence], used in turn.
        accumulation: micro-batches in a step of one data-parallel rank.
        device: the device of the training.
        mixed: train in bf16 with fp32 master weights; fp32 alone otherwise.
        compiled: let the trainer compile what it compiles by itself.
        tensor: tensor-parallel ranks.
        data: data-parallel ranks.
        stages: blocks of each pipeline stage.
    """

    shape: Any
    batches: Sequence[tuple[Tensor, Tensor]]
    accumulation: int
    device: torch.device
    mixed: bool
    compiled: bool
    tensor: int
    data: int
    stages: Sequence[int]


class SDPA(nn.Module):
    """PyTorch's scaled_dot_product_attention as Megatron-core's core attention.

    Args:
        config: Megatron-core's configuration of the transformer.
        _others: what a core attention is also built with: layer number, types, groups of processes.
    """

    def __init__(self, config: Any, **_others: object) -> None:
        super().__init__()
        self.grouped = config.num_query_groups != config.num_attention_heads

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_mask: object, **_others: object) -> Tensor:
        """Return the causal context [sequence, batch, hidden] of states [sequence, batch, heads, size]."""
        states = (states.permute(1, 2, 0, 3) for states in (query, key, value))
        context = functional.scaled_dot_product_attention(*states, is_causal=True, enable_gqa=self.grouped)
        return context.permute(2, 0, 1, 3).flatten(2)


class MegatronCore:
    """Megatron-core with its local layers, which need neither TransformerEngine nor Apex.

    Their own attention materialises the scores, too many for these shapes: PyTorch's takes its place.
    The optimizer is that of `pretrain_gpt.py --bf16`, over data-parallel ranks with
    `--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather`. Pipelines are 1F1B.
    Sequence parallelism needs the norms of TransformerEngine or Apex.
    """

    def __init__(self, training: Training) -> None:
        from megatron.core import parallel_state
        from megatron.core.distributed import (
            DistributedDataParallel,
            DistributedDataParallelConfig,
            finalize_model_grads,
        )
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.pipeline_parallel import get_forward_backward_func
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
        from megatron.core.transformer import TransformerConfig
        from megatron.core.transformer.module import Float16Module

        shape, batches, accumulation, device, mixed, compiled, tensor, data, stages = training
        self.shared, shards = tensor * data, data > 1
        self.about = (
            f"megatron-core {version('megatron-core')}: local layers, scaled_dot_product_attention as core "
            "attention, fused bias, activation, residual and cross-entropy (torch.compile), Float16Module, "
            f"DistributedDataParallel with fp32 gradients{', overlapped' * shards}, "
            f"{'DistributedOptimizer' if shards else 'Float16OptimizerWithFloat16Params'} around AdamW"
        )
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tensor,
            pipeline_model_parallel_size=len(stages),
            create_gloo_process_groups=False,
        )
        cut = [["decoder"] * blocks for blocks in stages]
        cut[0].insert(0, "embedding")
        cut[-1].append("loss")
        model_parallel_cuda_manual_seed(1234)
        llama = bool(shape.groups)
        dtype = torch.bfloat16 if mixed else torch.float32
        config = TransformerConfig(
            num_layers=shape.layers,
            hidden_size=shape.hidden,
            num_attention_heads=shape.heads,
            num_query_groups=shape.groups or shape.heads,
            ffn_hidden_size=shape.ffn or 4 * shape.hidden,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            normalization="RMSNorm" if llama else "LayerNorm",
            gated_linear_unit=llama,
            activation_func=functional.silu if llama else functional.gelu,
            add_bias_linear=not llama,
            bias_activation_fusion=compiled,
            bias_dropout_fusion=compiled,
            cross_entropy_loss_fusion=compiled,
            bf16=mixed,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            tensor_model_parallel_size=tensor,
            pipeline_model_parallel_size=len(stages),
            pipeline_model_parallel_layout=cut if len(stages) > 1 else None,
            deallocate_pipeline_outputs=True,
        )
        layer = get_gpt_layer_local_spec(normalization=config.normalization)
        layer.submodules.self_attention.submodules.core_attention = SDPA
        model: Any = GPTModel(
            config,
            layer,
            vocab_size=shape.padded_vocabulary,
            max_sequence_length=shape.sequence,
            share_embeddings_and_output_weights=not llama,
            position_embedding_type="rope" if llama else "learned_absolute",
            rotary_base=500000,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
        ).to(device)
        if mixed:
            model = Float16Module(config, model)
        self.model = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                grad_reduce_in_fp32=True,
                overlap_grad_reduce=shards,
                overlap_param_gather=shards,
                use_distributed_optimizer=shards,
            ),
            model,
        )
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=LR,
                adam_beta1=BETAS[0],
                adam_beta2=BETAS[1],
                adam_eps=EPS,
                weight_decay=WEIGHT_DECAY,
                clip_grad=CLIP,
                bf16=mixed,
                params_dtype=dtype,
                use_distributed_optimizer=shards,
                overlap_param_gather=shards,
            ),
            [self.model],
            use_gloo_process_groups=False,
        )
        config.grad_scale_func = self.optimizer.scale_loss
        config.no_sync_func = self.model.no_sync
        config.finalize_model_grads_func = finalize_model_grads
        self.forward_backward = get_forward_backward_func()
        self.device = device
        self.batches = cycle(batches)
        self.size = {
            "num_microbatches": accumulation,
            "micro_batch_size": len(batches[0][0]),
            "seq_length": shape.sequence,
        }
        self.positions = torch.arange(shape.sequence, device=device).expand(len(batches[0][0]), -1)
        self.losses: list[Tensor] = []

    def forward(self, batches: Iterator[tuple[Tensor, Tensor]], model: nn.Module) -> tuple[Tensor, Any]:
        """Return the losses of a micro-batch's tokens and how Megatron-core reduces them to one."""
        tokens, labels = next(batches)

        def reduce(losses: Tensor) -> tuple[Tensor, Tensor]:
            mean = losses.float().mean()
            # Megatron-core divides the first by the number of micro-batches in place.
            return mean, mean.detach().clone()

        return model(tokens, self.positions, None, labels=labels), reduce

    def step(self) -> None:
        """Train on one batch."""
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        with attention_kernels(self.device):
            self.losses = self.forward_backward(
                forward_step_func=self.forward,
                data_iterator=self.batches,
                model=[self.model],
                forward_only=False,
                **self.size,
            )
        self.optimizer.step()

    def loss(self) -> float:
        """Return the mean loss of the last step; every rank calls this."""
        # Only the last stage has losses.
        mean = torch.stack(self.losses).mean() if self.losses else torch.zeros((), device=self.device)
        distributed.all_reduce(mean)
        return float(mean) / self.shared


class TorchTitan:
    """torchtitan's Llama 3 as its train.py trains it on one device: fp32 weights under autocast."""

    def __init__(self, training: Training) -> None:
        from torchtitan.components.loss import build_cross_entropy_loss
        from torchtitan.components.optimizer import build_optimizers
        from torchtitan.config import JobConfig
        from torchtitan.distributed import ParallelDims, utils
        from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama

        shape, batches, accumulation, device, mixed, compiled, *_ = training
        self.about = (
            f"torchtitan {version('torchtitan')}: Llama 3, fp32 weights under bf16 autocast (its choice for "
            "one device), blocks and loss compiled, fused AdamW"
        )
        job = JobConfig()
        job.training.seq_len = shape.sequence
        job.training.mixed_precision_param = "bfloat16" if mixed else "float32"
        job.activation_checkpoint.mode = "none"
        job.compile.enable = compiled
        job.optimizer.lr = LR
        job.optimizer.beta1, job.optimizer.beta2 = BETAS
        job.optimizer.eps = EPS
        job.optimizer.weight_decay = WEIGHT_DECAY
        dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=1)
        args = TransformerModelArgs(
            dim=shape.hidden,
            n_layers=shape.layers,
            n_heads=shape.heads,
            n_kv_heads=shape.groups,
            vocab_size=shape.padded_vocabulary,
            # The width is rounded up to the multiple.
            multiple_of=shape.ffn,
            ffn_dim_multiplier=shape.ffn / (8 * shape.hidden / 3),
            rope_theta=500000,
            max_seq_len=shape.sequence,
        )
        with torch.device("meta"):
            model = Transformer(args)
        self.model = parallelize_llama(model, dims, job)
        self.model.to_empty(device=device)
        with torch.no_grad():
            self.model.init_weights(buffer_device=None)
        self.model.train()
        self.optimizers = build_optimizers([self.model], job.optimizer, dims)
        self.criterion = build_cross_entropy_loss(job)
        self.precision = utils.maybe_enable_amp(dims, job.training.mixed_precision_param, device.type)
        self.clip = utils.clip_grad_norm_
        self.parameters = list(self.model.parameters())
        self.batches = cycle(batches)
        self.accumulation = accumulation
        self.tokens = accumulation * batches[0][0].numel()
        self.losses: list[Tensor] = []

    def step(self) -> None:
        """Train on one batch."""
        self.optimizers.zero_grad()
        self.losses = []
        for _ in range(self.accumulation):
            tokens, labels = next(self.batches)
            with self.precision:
                logits = self.model(tokens)
                loss = self.criterion(logits, labels) / self.tokens
            del logits  # as train.py does, for the peak of memory
            loss.backward()
            self.losses.append(loss.detach())
        self.clip(self.parameters, CLIP, foreach=True)
        self.optimizers.step()

    def loss(self) -> float:
        """Return the mean loss of the last step."""
        return float(torch.stack(self.losses).sum())


RIVALS: dict[str, type[MegatronCore | TorchTitan]] = {"megatron-core": MegatronCore, "torchtitan": TorchTitan}
