# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: E501  # cells of a table
"""Write the second part of docs/megatron-flags.md: Megatron's other flags, and what to do instead.

``megatron_flags.txt`` has the flags. The first part of the page, written by hand, maps those that have a key.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "megatron-flags.md"
FLAGS = DOCS / "megatron_flags.txt"
TITLE = "## What is not here"
HEAD = f"""{TITLE}

The other flags of Megatron-LM's pretraining (megatron-core 0.19.2) and Megatron-DeepSpeed's (207b2d5; flags that only it
has are marked DS), by purpose. `make docs` writes this table from `docs/megatron_flags.txt`. **Leave out** means that a
command line with the flag trains the same here without it. For what is missing, run Megatron itself in the same launchers,
with its own flags: `launcher.program: [pretrain_gpt.py, --num-layers, "24", …]`.
"""
MISSING = "Not here; run Megatron itself through `launcher.program`."

# Purpose, what to do instead, and the flags as a regular expression. The first rule that matches counts.
RULES: tuple[tuple[str, str, str], ...] = (
    # Always so.
    (
        "attention kernels",
        "Leave out: torch's `scaled_dot_product_attention` uses the fastest kernel.",
        r"use-flash-attn(-.*)?|attention-backend|flash-attention-version|transformer-impl|no-masked-softmax-fusion",
    ),
    (
        "fused kernels",
        "Leave out; `optimisation.compile: true` fuses what can be fused.",
        r"no-(bias-.*|rope|gradient-accumulation|gradient-reduce-div)-fusion|no-persist-layer-norm"
        r"|cross-entropy-(loss-fusion|fusion-impl)|disable-mem-efficient-ln|disable-jit-fuser|fused-residual-rmsnorm"
        r"|use-fused-weighted-squared-relu|use-transformer-engine-op-fuser|use-te-activation-func|no-clone-.*"
        r"|disable-clone-.*",
    ),
    (
        "precision of single steps",
        "Leave out: with 16-bit weights the optimiser's copy is fp32, the loss is computed in fp32, and bf16 gradients "
        "are summed in fp32. Attention is not scaled by layers.",
        r"accumulate-allreduce-grads-in-fp32|attention-softmax-in-fp32|fp16-lm-cross-entropy|embedding-weights-in-fp32"
        r"|(no|apply)-query-key-layer-scaling|disable-bf16-reduced-precision-matmul"
        r"|ddp-reduce-scatter-with-fp32-accumulation|ddp-param-name-patterns-for-fp32-local-accumulation"
        r"|no-check-for-nan-in-loss-and-grad",
    ),
    (
        "communication of gradients and weights",
        "Leave out: DeepSpeed and the pipeline here choose buckets and overlap; `parallel.zero_stage` sets what is sharded.",
        r"overlap-(grad-reduce|param-gather.*|p2p-.*)|no-overlap-p2p-.*|ddp-.*|DDP-impl|no-contiguous-buffers-in-local-ddp"
        r"|no-scatter-gather-.*|(no|disable)-align-(grad-reduce|param-gather)|use-ring-exchange-p2p|zero-.*"
        r"|no-async-tensor-model-parallel-allreduce|no-use-layer-wise-param-layout|create-all-gather-group"
        r"|suggested-communication-unit-size|num-distributed-optimizer-instances|pipeline-model-parallel-comm-backend",
    ),
    (
        "DeepSpeed's own configuration",
        "Leave out: it is derived from the job's YAML.",
        r"deepspeed(_config)?|deepscale(_config)?|no-pipeline-parallel|torch_adam|ds_fused_adam",
    ),
    (
        "rank and start of the processes",
        "Leave out: launchers set them, and every stage initialises its own weights.",
        r"local[-_]rank|lazy-mpu-init|use-cpu-initialization|no-initialization|init-model-with-meta-device"
        r"|use-mcore-models|fake-process-group|use-dataset-only|use-tp-pp-dp-mapping",
    ),
    (
        "saving on a signal",
        "Leave out: `SIGTERM`, `SIGUSR1` and Ctrl-C save and end the job ([resuming](resuming.md#ending-early)). "
        "`rdm-provision stop JOB` does it on every node.",
        r"exit-signal.*|kill-switch-file",
    ),
    (
        "restarting after a failure",
        "`launcher.max_restarts`; the agents of the nodes watch the ranks ([watching jobs](watching-jobs.md)).",
        r"adlr-.*|enable-ft-package|calc-ft-timeouts|ft-.*|inprocess-.*",
    ),
    (
        "slow ranks",
        "Leave out: every step is measured, and `rdm-provision jobs` names slow ranks ([watching jobs](watching-jobs.md)).",
        r"log-straggler|straggler-.*|disable-straggler-on-startup|gpu-sniff-test-interval|run-workload-inspector-server",
    ),
    (
        "values in TensorBoard",
        "TensorBoard gets every number of a log line, at `logging.interval`, without memory and optimiser states.",
        r"(no-|disable-)?log-.*-to-tensorboard|tensorboard-(log-interval|queue-size)",
    ),
    (
        "values in a log line",
        "Leave out: throughput, MFU and the norm of the gradients are in every line; the other figures are not here.",
        r"log-(throughput|progress|params-norm|num-zeros-in-grad|max-attention-logit|memory-interval|device-memory-used"
        r"|energy)|logging-level|config-logger-dir",
    ),
    (
        "timers",
        "`logging.trace_steps: 20-22` records a timeline of every rank, and a report draws it.",
        r"timing-log-.*|no-barrier-with-level-1-timing|profile-backward|synchronize-each-layer",
    ),
    (
        "Weights & Biases, one logger",
        "`logging.trackers: [wandb]`, with `WANDB_PROJECT` and its other variables in `launcher.env`.",
        r"wandb-.*|(no-)?one-logger.*|app-tag-.*",
    ),
    (
        "profilers",
        "`launcher.profiler`, `launcher.profiler_steps`, `launcher.profiler_ranks`.",
        r"profile([-_].*)?|use-pytorch-profiler|pytorch-profiler-.*|record-(memory-history|shapes)|memory-snapshot-path"
        r"|nvtx-ranges",
    ),
    (
        "NCCL's and torch's own settings",
        "Their variables in `launcher.env`, such as `NCCL_IB_SL`, `NCCL_NVLS_ENABLE` or `TORCH_NCCL_TRACE_BUFFER_SIZE`.",
        r"nccl-.*|use-nccl-ub|use-sharp|sharp-enabled-group|(no-|disable-)?flight-recorder-.*|disable-gloo-process-groups"
        r"|high-priority-.*|disable-symmetric-registration|symmetric-ar-type"
        r"|distributed-timeout-seconds-after-init",
    ),
    # Batch, optimiser, length.
    (
        "old names",
        "Megatron refuses them too: `optimisation.micro_batch_size`, `optimisation.warmup_fraction`, `parallel.tensor`.",
        r"batch-size|warmup|model-parallel-size",
    ),
    (
        "lengths in tokens",
        "Divide by `model.seq_length`: `optimisation.train_samples`, `warmup_samples`, `decay_samples`.",
        r"(train|lr-decay|lr-warmup)-tokens",
    ),
    (
        "a batch that grows",
        "Not here within a run: end it with `checkpoint.exit_interval`, and resume with another "
        "`optimisation.global_batch_size`.",
        r"step-batch-size-schedule|decrease-batch-size-if-needed",
    ),
    (
        "schedule of a resumed job",
        "Leave out: a resumed job uses its configuration's.",
        r"(override|use-checkpoint)-opt[_-]param-scheduler|no-load-lr-state",
    ),
    (
        "other schedules",
        "`cosine`, `linear`, `wsd` and `constant` are here; the rate rises from 0 and is one for all weights.",
        r"lr-warmup-init|decoupled-.*|freeze-all-layers|head-lr-mult",
    ),
    (
        "other optimisers",
        "AdamW alone is here. " + MISSING,
        r"optimizer|sgd-momentum|muon-.*|lion-.*|apply-wd-to-qk-layernorm|no-weight-decay-cond-type"
        r"|use-precision-aware-optimizer|main-(grads|params)-dtype|exp-avg-.*|optimizer-cuda-graph"
        r"|dump-param-to-param-group-map",
    ),
    (
        "weights, states and activations in the host's memory",
        "`parallel.offload_optimizer` and `parallel.offload_parameters` with DeepSpeed; activations are not offloaded: "
        "`parallel.tensor` and `parallel.activation_checkpointing` save memory, and `rdm-trainer dry-run` shows how much.",
        r"(cpu-optimizer|optimizer-(cpu-offload|offload-fraction))|use-torch-optimizer-for-cpu-offload"
        r"|overlap-cpu-optimizer-.*|no-pin-cpu-.*|remote-device|use-pin-memory|cpu-offloading-.*|checkpoint-in-cpu"
        r"|fine-grained-.*|offload-modules|min-offloaded-tensor-size|delay-offload-.*|delta-offload-.*"
        r"|activation-offload-fraction",
    ),
    (
        "activations: other ways to save memory",
        "`parallel.activation_checkpointing: full`, and `_interval` and `_blocks` of that name; attention never keeps "
        "its probabilities, so that `selective` has nothing to save. With `parallel.activation_memory_budget`, the "
        "compiler selects.",
        r"recompute-.*|distribute-(saved|checkpointed)-activations|deepspeed-activation-checkpointing"
        r"|partition-activations|contigious-checkpointing|scattered-embeddings|split-transformers"
        r"|memory-centric-tiled-linear|tile-factor|empty-unused-memory-level",
    ),
    # Layout.
    (
        "other forms of sequence and context parallelism",
        "Not here: take `parallel.sequence_parallel`, `parallel.context`, checkpoint activations, or "
        + MISSING.removeprefix("Not here; "),
        r"(hierarchical-|hybrid-)context-parallel.*|ds-sequence-parallel.*|force-ds-sequence-parallel"
        r"|max-seqlen-per-dp-cp-rank|cp-comm-type|mlp-chunks-.*",
    ),
    (
        "overlap within tensor parallelism",
        "Leave out: NCCL's own collectives are used.",
        r"(no-|disable-)?tp-comm-.*|tensor-parallel-num-weight-shards|(defer-embedding-wgrad-compute|wgrad-deferral-limit)"
        r"|delay-wgrad-compute",
    ),
    (
        "other pipeline schedules",
        "1F1B and interleaved 1F1B are here. More micro-batches (`optimisation.global_batch_size`) make the bubble smaller; "
        "`parallel.partition` moves blocks between stages, and `0-…` gives the embedding one of its own.",
        r"enable-zbh1-.*|microbatch-group-.*"
        r"|account-for-.*-in-pipeline-split|standalone-embedding-stage|pipeline-model-parallel-split-rank",
    ),
    (
        "FSDP",
        "`parallel.zero_stage: 3` shards weights, gradients and states.",
        r".*fsdp.*|data-parallel-sharding-strategy|outer-dp-sharding-strategy|enable-full-sharding-in-hsdp"
        r"|keep-fp8-transpose-cache",
    ),
    # The model.
    (
        "mixtures of experts",
        MISSING,
        r"(disable-|create-|overlap-)?moe-.*|num-experts(-switch)?|expert-.*|mlp-type|topk|use-tutel"
        r"|enable-expert-tensor-parallelism|overlap-dispatch-.*|ep-overlap-.*|use-grouped-gemm-.*",
    ),
    (
        "latent, sparse and windowed attention",
        MISSING,
        r"multi-latent-attention|experimental-attention-variant"
        r"|(no-|disable-)?dsa-.*|linear-.*|q-lora-rank|kv-lora-rank|qk-.*|v-head-dim|mscale.*|cache-mla-latents|mla-.*"
        r"|softmax-type|window-.*|attention-output-gate|.*kitchen-attention.*",
    ),
    (
        "other positions, and parts of rotary ones",
        "Positions are learned, rotary over whole heads, or T5's relative ones. " + MISSING,
        r"position-embedding-type|no-position-embedding|use-rotary-position-embeddings|rotary-.*|rope-.*|use-rope-scaling"
        r"|no-rope-freq|(no-)?yarn-.*|mrope-section",
    ),
    (
        "other norms",
        "LayerNorm or RMSNorm before each part is here. " + MISSING,
        r"apply-layernorm-1p|apply-residual-connection-post-layernorm|fp32-residual-connection",
    ),
    (
        "other activations",
        "GELU in its tanh form, OpenAI's, and SwiGLU are here. " + MISSING,
        r"squared-relu|quick-geglu|openai-gelu|glu-linear-offset|activation-func-clamp-value",
    ),
    (
        "state spaces, hybrids, other block plans",
        MISSING,
        r"mamba-.*|disable-mamba-.*|is-hybrid-model|hybrid-.*|heterogeneous-.*|spec|mtp-.*|enable-experimental",
    ),
    (
        "other initial weights",
        "`model.init_std`; residual outputs are divided by the root of twice the number of blocks, as in Megatron.",
        r"init-method-xavier-uniform|embedding-init-method-std|data-parallel-random-init|use-mup|mup-.*",
    ),
    (
        "fp8, fp4",
        "`optimisation.fp8_recipe: tensorwise` for the recipe of that name, else `optimisation.precision: bf16`. For "
        "other recipes, run Megatron itself through `launcher.program`.",
        r"(no-|disable-)?fp8-.*|fp4-.*|first-last-layers-bf16|num-layers-at-.*-in-bf16|reuse-grad-buf-.*"
        r"|te-precision-config-file|te-rng-tracker",
    ),
    (
        "CUDA graphs",
        "`optimisation.cuda_graphs: true` replays the passes of a micro-batch of a model with one pipeline stage. For "
        "other graphs, run Megatron itself through `launcher.program`.",
        r".*cuda-graph.*",
    ),
    (
        "Other BERTs, ICT, RETRO, vision",
        "Only GPT, T5, and BERT without its next-sentence head are here; for others, run Megatron itself through "
        "`launcher.program`.",
        r"bert-.*|ict-.*|biencoder-.*|retro-.*|retriever-.*|titles-data-path|query-in-block-prob|use-one-sent-docs"
        r"|evidence-data-path|block-data-path|embedding-path|indexer-.*|output-bert-embeddings|num-classes|img-[hw]"
        r"|num-channels|patch-dim|.*classes-fraction|data-per-class-fraction|no-data-sharding|vision-.*|swin-.*|mask-type"
        r"|mask-factor|iter-per-epoch|dino-.*",
    ),
    (
        "distillation, reinforcement learning, instructions",
        MISSING,
        r"kd(-.*)?|mos|.*-teacher|reset-iteration|logits-.*|(no-)?rl-.*|grpo-.*|perform-rl-step|langrl-.*|refit-method"
        r"|sft(-.*)?|chat-template",
    ),
    (
        "text generation",
        "Not here: this program only trains.",
        r"(no-)?inference(-.*)?|ds-inference|max-tokens-to-oom|flash-decode|use-legacy-static-engine"
        r"|enable-chunked-prefill|num-speculative-tokens|use-same-sampling-seed-.*|batch-invariant-mode|onnx-safe",
    ),
    # Data.
    (
        "tokenizers of other kinds",
        "`data.tokenizer.kind: huggingface` with the `tokenizer.json` that SentencePiece and tiktoken models have on "
        "Hugging Face.",
        r"(no-|disable-)?tokenizer-.*|tiktoken-.*|null-tokenizer-.*|trust-remote-code",
    ),
    (
        "size of the vocabulary in memory",
        "`model.make_vocab_size_divisible_by` pads it; `1` does not.",
        r"padded-vocab-size|(no|disable)-pad-vocab-size",
    ),
    (
        "documents within a sample",
        "`data.reset_attention_mask` and `data.reset_position_ids`; masks are made where attention needs them.",
        r"dataloader-inter-document-masking|no-create-attention-mask-in-dataloader|allow-ambiguous-pad-tokens",
    ),
    (
        "filling in the middle",
        MISSING,
        r"fim-.*",
    ),
    (
        "order and number of the samples",
        "The order follows from the data, `optimisation.seed` and the number of samples "
        "([data](data-formats.md#index-maps-of-a-gpt)); for a number of epochs, set `optimisation.train_samples` to their samples.",
        r"train-data-exact-num-epochs|train-(idx|desc|doc-idx|sample-idx|shuffle-idx)-path|return-data-index"
        r"|sample-rate|random-ltd|data-efficiency-.*|phase-transition-iterations|mid-level-dataset-surplus",
    ),
    (
        "lists of data in files",
        "Write the list into the job's YAML: `data.blend`, or `data.train`, `data.valid` and `data.test`.",
        r"(per-split-)?data-args-path|per-dataset-sequences-path|multiple-validation-sets|validation-set-names",
    ),
    (
        "how data is read",
        "Leave out: files are mapped into memory. Copy objects from an object store to a file system first.",
        r"data-impl|mmap-warmup|no-mmap-bin-files|num-dataset-builder-threads|dataloader-.*|object-storage-cache-path"
        r"|(enable|disable)-msc|repeated-dataloader|aml-data-download-path",
    ),
    # Evaluation, checkpoints, faults.
    (
        "evaluation of another kind",
        "`logging.eval_interval`, `logging.eval_iterations`, with the training's batch.",
        r"start-eval-at-iter|eval-(global|micro)-batch-size|full-validation|test-mode|skip-train",
    ),
    (
        "starting from another checkpoint",
        "`checkpoint.load` starts from another job's; `rdm-trainer checkpoint repair JOB --iteration N` goes back to an "
        "earlier one. Optimiser and step are always loaded.",
        r"finetune|pretrained-checkpoint|no-load-(optim|rng)|ckpt-step|load-tag|exit-on-missing-checkpoint"
        r"|load-main-params-from-ckpt|override-ckpt-iteration",
    ),
    (
        "arguments from a checkpoint",
        "Leave out: the configuration has them, and a model of another shape is refused.",
        r"use-checkpoint-args|use-mp-args-from-checkpoint-args|(no|disable)-use-tokenizer-model-from-checkpoint-args",
    ),
    (
        "formats of checkpoints",
        "Leave out: every checkpoint resumes under [another layout](resuming.md#another-layout), is written by all ranks "
        "and is verified; `checkpoint.asynchronous` writes in the background.",
        r"(no-)?ckpt-.*|disable-ckpt-.*|auto-detect-ckpt-format|universal-checkpoint|use-dist-ckpt|(dist|async)-ckpt-.*"
        r"|use-persistent-ckpt-worker|async-strategy|distrib-optim-.*|(no|disable)-(strict-fsdp-.*|stream-ckpt-dequant)"
        r"|verify-integrity|checkpoint-(io-buffer-size|data-parallel|writer-decoupled)|aio-intra-op-parallelism",
    ),
    (
        "which checkpoints are written and kept",
        "`checkpoint.interval`, `checkpoint.keep`. Where nodes share no disk, each keeps what its ranks wrote.",
        r"save-retain-interval|non-persistent-.*|replication.*|no-save-(optim|rng)",
    ),
    (
        "tensors of a run for analysis",
        MISSING,
        r"save-(params|activations|tokens-per-expert|wgrads|dgrads)-interval",
    ),
    (
        "determinism and faults",
        "No step is skipped or repeated; the log reports a loss that is not finite, and two runs under one layout have "
        "the same losses. For torch's own switches: `launcher.env: {CUBLAS_WORKSPACE_CONFIG: ':4096:8'}`.",
        r"deterministic-mode|rerun-mode|error-injection-.*|check-for-.*|result-rejected-tracker-filename|fault-injector-.*"
        r"|check-weight-hash-.*|iterations-to-skip",
    ),
    (
        "Python's garbage collector, waiting for all ranks",
        "Leave out.",
        r"(no-|disable-)?manual-gc.*|train-sync-interval",
    ),
    (
        "a configuration in YAML",
        "The job's YAML, with the keys above.",
        r"yaml-cfg",
    ),
)


def flags() -> dict[str, bool]:
    """Return the flags, and whether only Megatron-DeepSpeed has each."""
    theirs, ds = FLAGS.read_text(encoding="utf-8").split("\n\n")
    lists = [[line for line in part.splitlines() if line.startswith("--")] for part in (theirs, ds)]
    return dict.fromkeys(lists[0], False) | {flag: True for flag in lists[1] if flag not in lists[0]}


def mapped(page: str) -> set[str]:
    """Return the flags with a key in the hand-written part of the page."""
    return set(re.findall(r"--[A-Za-z0-9_-]+", page.partition(TITLE)[0]))


def rule_of(flag: str) -> int | None:
    """Return the index of the first rule that matches a flag."""
    name = flag.removeprefix("--")
    return next((n for n, (_, _, pattern) in enumerate(RULES) if re.fullmatch(pattern, name)), None)


def page(before: str) -> str:
    """Return the whole page, with the hand-written part of the page before."""
    names = flags()
    rows = ["| for | instead | flags |", "|---|---|---|"]
    for number, (what, instead, _) in enumerate(RULES):
        own = sorted(flag for flag in names.keys() - mapped(before) if rule_of(flag) == number)
        listed = ", ".join(f"{'DS ' if names[flag] else ''}`{flag}`" for flag in own)
        rows.append(f"| {what} | {instead} | {listed} |")
    return before.partition(TITLE)[0] + HEAD + "\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8").rstrip() + "\n\n"), encoding="utf-8")
