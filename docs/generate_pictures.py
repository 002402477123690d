"""Draw docs/hops-up.svg and docs/hops-training-step.svg: who calls whom, from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent

LANE = 235
"""Pixels from one lane to the next."""
ROW = 42
MARGIN = 120
TOP = 66
COLOURS = {"text": "#1f2328", "faint": "#8c959f", "line": "#0969da", "box": "#ddf4ff"}


class Hop(NamedTuple):
    """One arrow, or a step within a lane where both ends are the same.

    Attributes:
        start: number of the lane that it leaves.
        end: number of the lane that it reaches.
        text: what is called, or done.
        note: more of it, in small letters below.
    """

    start: int
    end: int
    text: str
    note: str = ""


class Picture(NamedTuple):
    """A picture: its lanes, each with what it is and where it runs, and the hops from top to bottom."""

    title: str
    lanes: Sequence[tuple[str, str]]
    hops: Sequence[Hop]


UP = Picture(
    "One up, hop by hop",
    (
        ("rdm_provision", "the user's process"),
        ("ansible-playbook", "on the same machine"),
        ("a module", "a Python on each node"),
        ("Docker Engine", "of each node"),
        ("containers", "on MY_IP"),
    ),
    (
        Hop(0, 0, "cli/up.py, Cluster.up", "options, variables"),
        Hop(0, 1, "run.py, _supervised.py", "the cluster's lock, site.yml"),
        Hop(1, 1, "plan, once", "the inputs of each role"),
        Hop(1, 2, "node_facts", "above 16 nodes in threads: ask_all"),
        Hop(2, 3, "what is there", "against the receipt"),
        Hop(2, 1, "what has changed, by role"),
        Hop(1, 1, "work, once", "who has what to do"),
        Hop(1, 2, "image_archive", "inspects; nothing is changed yet"),
        Hop(1, 1, "plan, once", "addresses, collisions: refuse, or write"),
        Hop(1, 2, "image_archive"),
        Hop(2, 3, "load", "the layers that are missing"),
        Hop(1, 2, "docker_network"),
        Hop(2, 3, "create"),
        Hop(1, 2, "container", "first the files: MY_IP, keys, hostfile"),
        Hop(2, 3, "create, start"),
        Hop(3, 4, "sshd"),
        Hop(2, 2, "receipt", "what was left, for the next look"),
        Hop(1, 2, "fabric_probe", "above 16 nodes in threads: ask_all"),
        Hop(2, 4, "every container asks every other", "ICMP, and a login"),
        Hop(1, 1, "fabric_verdict, once"),
        Hop(1, 0, "translator.py", "ansible-runner's events become ours"),
        Hop(0, 0, "cli/live.py, cli/view.py", "lines, recap, exit status"),
    ),
)

STEP = Picture(
    "One training step, hop by hop",
    (
        ("train.py", "every rank"),
        ("engine.py", "DeepSpeed's engine"),
        ("data", "of its data-parallel rank"),
        ("models", "this stage's layers"),
        ("other ranks", "NCCL or RCCL, gloo"),
    ),
    (
        Hop(0, 0, "Training._step", "learning rate: optim/schedule.py"),
        Hop(0, 1, "train_step"),
        Hop(1, 2, "data/loaders.py", "sampler, dataset, index map, .bin"),
        Hop(2, 1, "micro-batches"),
        Hop(1, 3, "forward, micro-batch by micro-batch", "distributed/pipeline_parallel"),
        Hop(4, 3, "activations", "of the stage before"),
        Hop(3, 3, "transformer.py", "attention, MLP"),
        Hop(3, 4, "sums", "tensor_parallel/layers.py"),
        Hop(3, 4, "activations", "to the stage behind"),
        Hop(3, 3, "cross_entropy.py", "the last stage; over a split vocabulary"),
        Hop(1, 3, "backward", "in the order of the schedule"),
        Hop(3, 4, "gradients", "to the stage before"),
        Hop(1, 1, "distributed_optimizer.py", "gradients in fp32"),
        Hop(1, 4, "reduce over data-parallel ranks, clip", "optim/distributed_optimizer.py"),
        Hop(1, 1, "one step of the optimiser"),
        Hop(4, 1, "weights, gathered", "from ZeRO's parts"),
        Hop(0, 0, "_log, _save", "a line of metrics.py; checkpoint/"),
    ),
)

PICTURES = {"hops-up.svg": UP, "hops-training-step.svg": STEP}


def svg(picture: Picture) -> str:
    """Return the picture."""
    width = 2 * MARGIN + LANE * (len(picture.lanes) - 1)
    height = TOP + ROW * (len(picture.hops) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f"<title>{escape(picture.title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        '<marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{COLOURS["line"]}"/></marker>',
    ]
    for number, (name, where) in enumerate(picture.lanes):
        x = MARGIN + number * LANE
        parts += [
            f'<line x1="{x}" y1="{TOP - 12}" x2="{x}" y2="{height - 8}" stroke="{COLOURS["faint"]}" '
            'stroke-dasharray="2 4"/>',
            f'<rect x="{x - 80}" y="8" width="160" height="44" rx="4" fill="{COLOURS["box"]}"/>',
            _text(x, 27, name, weight="bold"),
            _text(x, 43, where, colour="faint"),
        ]
    for number, hop in enumerate(picture.hops):
        parts += _hop(hop, TOP + ROW * number + 22)
    return "\n".join([*parts, "</svg>", ""])


def _hop(hop: Hop, y: int) -> Iterator[str]:
    start, end = (MARGIN + lane * LANE for lane in (hop.start, hop.end))
    middle = (start + end) // 2
    if start == end:
        wide = 7 * max(len(hop.text), len(hop.note)) + 10
        yield (
            f'<rect x="{middle - wide // 2}" y="{y - 13}" width="{wide}" height="35" rx="4" fill="#ffffff" '
            f'stroke="{COLOURS["faint"]}"/>'
        )
        yield _text(middle, y + 1 if hop.note else y + 8, hop.text)
        yield _text(middle, y + 16, hop.note, colour="faint")
        return
    yield (
        f'<line x1="{start}" y1="{y}" x2="{end}" y2="{y}" stroke="{COLOURS["line"]}" '
        'stroke-width="1.5" marker-end="url(#tip)"/>'
    )
    yield _text(middle, y - 5, hop.text)
    yield _text(middle, y + 14, hop.note, colour="faint")


def _text(x: int, y: int, text: str, colour: str = "text", weight: str = "normal") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="middle" fill="{COLOURS[colour]}" font-weight="{weight}">'
        f"{escape(text)}</text>"
        if text
        else ""
    )


if __name__ == "__main__":
    for file, drawn in PICTURES.items():
        (DOCS / file).write_text(svg(drawn), encoding="utf-8")
