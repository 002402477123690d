# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer export``, ``import`` and ``generate``: what is done with weights alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rdm_log.wording import size_text

_iteration = click.option(
    "--iteration", type=click.IntRange(min=0), help="The step.  [default: the newest complete one]"
)
_path = click.Path(path_type=Path)


class _Finite(click.FloatRange):
    """A finite number in a range; click's own takes ``nan`` as well."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@click.command(epilog="Example:  rdm-trainer export /jobs/gpt-1121-081512 gpt-hf")
@click.argument("checkpoint", type=_path)
@click.argument("directory", type=_path)
@_iteration
@click.option(
    "--dtype",
    type=click.Choice(list(_DTYPES)),
    help="Of the tensors.  [default: the training's precision, or the model's files']",
)
@click.option(
    "--shard-size",
    type=_Finite(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="GB",
    help="Of a file, and about the memory that it takes.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["huggingface", "megatron"]),
    default="huggingface",
    show_default=True,
    help="Of the files.",
)
@click.option("--tensor", type=click.IntRange(min=1), default=1, help="megatron: tensor ranks.  [default: 1]")
@click.option("--pipeline", type=click.IntRange(min=1), default=1, help="megatron: stages.  [default: 1]")
@click.option(
    "--virtual-pipeline",
    type=click.IntRange(min=1),
    default=1,
    help="megatron: chunks of layers on each stage.  [default: 1]",
)
@click.option(
    "--transformer-impl",
    type=click.Choice(["transformer_engine", "local"]),
    default="transformer_engine",
    show_default=True,
    help="megatron: as its option of this name, after which it names the norms.",
)
def export(
    checkpoint: Path,
    directory: Path,
    iteration: int | None,
    dtype: str | None,
    shard_size: float,
    kind: str,
    tensor: int,
    pipeline: int,
    virtual_pipeline: int,
    transformer_impl: str,
) -> None:
    """Write the weights of CHECKPOINT into DIRECTORY as transformers or Megatron read them.

    CHECKPOINT is a job's directory, its checkpoints/, or a model in either format. Whatever layout wrote it,
    the files are the same: config.json, safetensors with their index, and the tokenizer's files. GPT-2,
    Llama, Mistral, Qwen2, Qwen3, Mixtral, T5 and BERT. For Megatron it is a release checkpoint in its format
    torch, without a tokenizer's files.
    """
    layout = ("tensor", "pipeline", "virtual_pipeline", "transformer_impl")
    others = ("shard_size",) if kind == "megatron" else layout
    context = click.get_current_context()
    for name in others:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(
                f"--{name.replace('_', '-')} is not for --format {kind}; leave it out, or take the other "
                "format."
            )

    from rdm_trainer.weights import directory as hugging_face
    from rdm_trainer.weights.megatron import writing as megatron
    from rdm_trainer.weights.sources import open_source

    source = open_source(checkpoint, iteration, verify=True)
    stored = _DTYPES[dtype] if dtype else None
    if kind == "megatron":
        fused = transformer_impl == "transformer_engine"
        size = megatron.write(
            source,
            directory,
            tensor=tensor,
            pipeline=pipeline,
            virtual=virtual_pipeline,
            dtype=stored,
            fused=fused,
        )
    else:
        size = hugging_face.write(source, directory, dtype=stored, shard_bytes=int(shard_size * 1e9))
    click.echo(f"{directory} has the weights of {source.where}, {size_text(size)}.")


@click.command("import", epilog="Example:  rdm-trainer import Qwen3-8B qwen3.yaml")
@click.argument("directory", type=_path)
@click.argument("config", type=_path)
def import_(directory: Path, config: Path) -> None:
    """Write the configuration CONFIG of a job that begins with the weights in DIRECTORY.

    DIRECTORY is a model in Hugging Face's format (config.json and safetensors), or the --save of a training
    of Megatron's, in its formats torch_dist or torch. Nothing is converted: under every layout, each rank
    reads from those files what it holds. Add data, batch and layout to CONFIG.
    """
    from rdm_trainer.weights.importing import configuration

    text = configuration(directory)
    from rdm_core.errors import FAILED, TrainerError

    try:
        with config.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise TrainerError(f"{config} is there already; name a file that is not.") from None
    except OSError as error:
        raise TrainerError(f"{config} cannot be written: {error.strerror}.", exit_code=FAILED) from error
    click.echo(f"{config} begins with the weights of {directory}; add data, batch and layout to it.")


@click.command(epilog="Example:  rdm-trainer generate Qwen3-8B 'Once upon a time' --tokens 32")
@click.argument("checkpoint", type=_path)
@click.argument("prompt")
@_iteration
@click.option("--tokens", type=click.IntRange(min=1), default=64, show_default=True, help="New ones at most.")
@click.option(
    "--temperature",
    type=_Finite(min=0),
    default=0.0,
    show_default=True,
    help="0 takes the likeliest token each time.",
)
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from the K likeliest tokens only.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=1234, show_default=True, help="Of what is drawn."
)
@click.option("--device", help="As cuda or cpu.  [default: a GPU where there is one]")
def generate(
    checkpoint: Path,
    prompt: str,
    iteration: int | None,
    tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    device: str | None,
) -> None:
    """Print PROMPT and what the model of CHECKPOINT makes of it; of a T5 its answer alone.

    CHECKPOINT is a job's directory, its checkpoints/, or a model in Hugging Face's format.
    """
    import sys

    context = click.get_current_context()
    for name in ("top_k", "seed") if temperature == 0 else ():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            raise click.UsageError(f"{option} needs --temperature above 0, with which tokens are drawn.")

    from rdm_trainer.weights.generation import Generator
    from rdm_trainer.weights.sources import open_source

    generator = Generator(open_source(checkpoint, iteration, verify=True), device)
    if generator.goes_on:
        sys.stdout.write(prompt)
    for piece in generator.text(prompt, tokens, temperature=temperature, top_k=top_k, seed=seed):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
