# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a training's length, batch and learning rate. Each problem is one sentence."""

from __future__ import annotations

from collections.abc import Iterator

from rdm_core.config.schema import Config


def _length(config: Config) -> Iterator[str]:
    o = config.optimisation
    if (o.train_iterations is None) == (o.train_samples is None):
        which = "neither" if o.train_iterations is None else "both"
        yield (
            f"optimisation has {which} of train_iterations and train_samples; give exactly one"
            f"{'' if which == 'neither' else ' and set the other to null'}."
        )
    if o.train_iterations is None and o.train_samples is not None and o.train_samples < o.global_batch_size:
        yield (
            f"optimisation.train_samples {o.train_samples} is less than one global batch of "
            f"{o.global_batch_size}."
        )
    if config.parallel.data is not None:
        yield from batch(config, config.parallel.data)


def _warmups(config: Config) -> Iterator[str]:
    o = config.optimisation
    warmups = [
        name
        for name in ("warmup_fraction", "warmup_iterations", "warmup_samples")
        if getattr(o, name) is not None
    ]
    if len(warmups) > 1:
        yield f"optimisation has {' and '.join(warmups)}; give at most one."
    if o.decay_iterations is not None and o.decay_samples is not None:
        yield "optimisation has decay_iterations and decay_samples; give at most one."


def _rampup(config: Config) -> Iterator[str]:
    o = config.optimisation
    ramp = o.rampup_batch_size
    if ramp is None:
        return
    if ramp.start >= o.global_batch_size or (o.global_batch_size - ramp.start) % ramp.increment:
        yield (
            f"optimisation.rampup_batch_size begins at {ramp.start} and grows by {ramp.increment}, which "
            f"does not meet global_batch_size {o.global_batch_size}; change one of the three."
        )
    for key in ("train_iterations", "warmup_iterations", "decay_iterations", "wsd_decay_iterations"):
        if getattr(o, key) is not None:
            yield (
                f"optimisation has rampup_batch_size and {key}, but steps of a batch that grows are no "
                f"measure; give {key.replace('iterations', 'samples')}."
            )


def _rates(config: Config) -> Iterator[str]:
    o = config.optimisation
    if o.min_lr > o.lr:
        yield f"optimisation.min_lr {o.min_lr:g} is above optimisation.lr {o.lr:g}."
    ends = (o.wsd_decay_iterations, o.wsd_decay_samples)
    if o.schedule == "wsd" and sum(end is not None for end in ends) != 1:
        yield (
            "optimisation.schedule is wsd; give exactly one of wsd_decay_iterations and wsd_decay_samples, "
            "the length of the decay at the end."
        )
    if o.schedule != "wsd" and any(end is not None for end in ends):
        yield f"optimisation.wsd_decay_* is for the schedule wsd, but it is {o.schedule}; leave it out."
    bounds = (o.start_weight_decay, o.end_weight_decay)
    if o.weight_decay_incr_style != "constant" and None in bounds:
        yield (
            f"optimisation.weight_decay_incr_style is {o.weight_decay_incr_style}; give start_weight_decay "
            "and end_weight_decay."
        )
    if o.weight_decay_incr_style == "constant" and bounds != (None, None):
        yield (
            "optimisation has start_weight_decay or end_weight_decay, but weight_decay_incr_style is "
            "constant; set it to linear or cosine, or give weight_decay alone."
        )
    if o.loss_scale is not None and o.precision != "fp16":
        yield f"optimisation.loss_scale is for fp16, but the precision is {o.precision}; leave it out."


def _warmup_within_decay(config: Config) -> Iterator[str]:
    o = config.optimisation
    batch = o.global_batch_size
    decay = o.decay_samples or (o.decay_iterations or config.train_iterations) * batch
    warmup = o.warmup_samples or (o.warmup_iterations or 0) * batch or int((o.warmup_fraction or 0) * decay)
    if warmup and decay and warmup > decay:
        yield (
            f"The warm-up of {warmup} samples is longer than the decay of {decay} samples that contains it; "
            "make it shorter."
        )
    tail = o.wsd_decay_samples or (o.wsd_decay_iterations or 0) * batch
    if tail and decay and warmup + tail > decay:
        yield (
            f"The warm-up of {warmup} samples and the decay of {tail} at the end are longer than the {decay} "
            "samples of the whole schedule; make them shorter."
        )


def batch(config: Config, data: int) -> Iterator[str]:
    """Yield the problems of the batch with a number of replicas."""
    o, parallel = config.optimisation, config.parallel
    step = o.micro_batch_size * data
    factors = f"micro_batch_size {o.micro_batch_size} x {data} replicas"
    if parallel.virtual_pipeline > 1:
        # A stage takes ``pipeline`` micro-batches through one chunk before it begins the next chunk.
        step *= parallel.pipeline
        factors += f" x {parallel.pipeline} stages (parallel.virtual_pipeline)"
    ramp = o.rampup_batch_size
    if ramp is not None and (ramp.start % step or ramp.increment % step):
        yield (
            f"optimisation.rampup_batch_size has start {ramp.start} and increment {ramp.increment}; both "
            f"must be multiples of {factors} = {step}."
        )
    micro_batches = o.global_batch_size // (o.micro_batch_size * data)
    if parallel.pipeline > 1 and 0 < micro_batches < parallel.eager_forwards:
        noun = "micro-batches" if micro_batches > 1 else "micro-batch"
        yield (
            f"parallel.eager_forwards is {parallel.eager_forwards}, but a step has only {micro_batches} "
            f"{noun}; take {micro_batches} or fewer."
        )
    if o.global_batch_size % step:
        lower, upper = o.global_batch_size // step * step, -(-o.global_batch_size // step) * step
        near = f"{lower} or {upper}" if lower else f"{upper}"
        yield (
            f"optimisation.global_batch_size {o.global_batch_size} is not a multiple of {factors} = {step}; "
            f"{near} would be."
        )


SCHEDULE_CHECKS = (_length, _warmups, _rampup, _rates, _warmup_within_decay)
