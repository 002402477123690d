# SPDX-License-Identifier: GPL-3.0-or-later
"""One line of a log → records.

Only this module and ``grammars``, for other programs' lines, know the format of lines.

Lines are read by key, not by position: forks insert fields or leave some out, and launchers put ``node: `` or
``[default7]:`` before the line. Only complete fields count, so a line that was cut yields the fields before
the cut and nothing wrong. One line may hold several records: when ranks write at the same moment, the newline
between them gets lost.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rdm_log.grammars import GRAMMARS, MEMORY, MILLISECONDS, NAMES, OWN, SECONDS, Grammar
from rdm_log.records import (
    DONE,
    Argument,
    Checkpoint,
    EngineStep,
    Evaluation,
    Memory,
    Milestone,
    Record,
    Step,
    Throughput,
    Timer,
)

# Every line that matters contains ``_STEP_WORD`` or one of the needles; all others are skipped. Each is
# searched for in the whole log, so there are few: ``time`` covers five kinds of lines, among them the heading
# of all ranks' timers.
TIME = re.compile(rb"time(?:: | \(|s a)")
_SETUP = b"done with setup ..."
_STEP_WORD = b"iteration"
NEEDLES: tuple[bytes | re.Pattern[bytes], ...] = (
    TIME,
    b" ........",
    b"loss",
    b", skipped=",
    b"CurrSamplesPerSec=",
    _SETUP,
)

# No training counts to a number with more digits.
_STEP = re.compile(rb"iteration +(\d{1,15})/ *(\d{1,15}|infinity) *\|")
_EVALUATION = re.compile(rb"(?:loss|results) at ([^|]{1,200}?) +\|([^\n]*)")
_MEMORY = re.compile(rb"\[Rank (\d{1,9})\] \(after (\d{1,15}) iterations\) memory \(MB\) *\|")
_MEMORY_FIELD = re.compile(rb" *([a-z][a-z ]{0,40}): *(\d+(?:\.\d*)?)(?![\d.])( *\|)?")
_MILESTONE = re.compile(rb"\[([^\[\]]{1,120})\] datetime: (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_CHECKPOINT = re.compile(
    rb"(?:successfully (?=saved|loaded)|\b(?=saving ))(sav(?:ed|ing)|loaded) checkpoint\b"
    rb"[^\n]{0,4096}? (?:at|from) iteration +(\d{1,15})(?!\d)"
)
_TIMES = re.compile(rb"time \(ms\) \|")
_DOTTED = re.compile(rb"(?:^|:) {2,}([A-Za-z][\w/-]{0,60}) \.{2,}( ?[^\n]+)$")
_MIN_MAX = re.compile(rb": \((\d+(?:\.\d*)?), (\d+(?:\.\d*)?)\)")
_OF_TABLE = re.compile(rb" {2,}([A-Za-z][\w/-]{0,60}) \.{2,}: \((\d+\.\d+), (\d+\.\d+)\)")
"""A whole line of a table of timers. Such tables have some twenty lines for each step."""
_MAX = re.compile(rb": (\d+(?:\.\d*)?)$")
_PIPELINE = re.compile(
    rb"steps: (\d{1,15}) loss: (\S+) iter time \(s\): (\d+(?:\.\d*)?) "
    rb"samples/sec: (\d+(?:\.\d*)?)(?![\d.])(\s?)"
)
_ENGINE = re.compile(rb"step=(\d{1,15}), skipped=(\d+), lr=\[([^\],]*)")
_THROUGHPUT = re.compile(rb"global_step=\d{1,15}, (?=\w{1,40}=)")
_SAMPLES = re.compile(rb"CurrSamplesPerSec=([^\s,]{1,40}),")
_ALLOCATED = re.compile(rb"(Max|\b)MemAllocated=(\d+(?:\.\d+)?)GB")
_TIME = re.compile(rb"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?\]?")
_MOMENT = re.compile(rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3})\]")
_TAG = re.compile(
    rb"(\[(?:rank|default)\d{1,9}\](?=:\S)|(?:\[[^\[\]\s]{1,60}\](?:<\w+>)?:?|[^\s:\[\]]{1,253}:)(?=\s|$))"
)

# How the C library of Windows prints them.
_NOT_FINITE = re.compile(rb"[-+]?(?:nan\(\w*\)|1\.#(?:QNAN|SNAN|IND|(INF))\d*)", re.IGNORECASE)
_FLOPS = re.compile(rb"(\d+(?:\.\d*)?)([KMGTPE])FLOPS")
_PREFIXES = b"KMGTPE"
_THOUSANDS = re.compile(rb"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?")
_CLOCK = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{3}")
_RANK = re.compile(r"\[(?:rank|default)(\d{1,9})\]")
# ``samples/sec: 51.234 |`` before the number of the step.
_FIELD_BEFORE = re.compile(rb"(?<![^\s])[a-z/]+: *[\d.]+ *\|")
_EVALUATED = re.compile(r"loss|eval_(?!runtime$|\w+_per_second$).*")
_NO_NAME = re.compile(r"['\":]+ *['\"]?")
_STEP_OF_WORD = b"global_step/max_steps"
_STEP_OF = re.compile(rb"['\"]global_step/max_steps['\"]: ['\"](\d{1,15})/(\d{1,15})['\"]")
_MEBI = 1024.0 * 1024.0
_OPEN = tuple(one.is_open for one in GRAMMARS if one.is_open)


class _Layout(NamedTuple):
    """A training line with these fields in this order, which a program writes at every step.

    Attributes:
        pattern: Matches the line from ``iteration`` on. Its groups are the two numbers and the values.
        names: The names of the values.
    """

    pattern: re.Pattern[bytes]
    names: tuple[str, ...]


_MOST_LAYOUTS = 8
"""The most layouts that are compiled and tried: a log has one or two."""
_layouts: list[_Layout] = []


def parse(line: bytes, *, whole: bool = True) -> list[Record]:
    """Return the records in a line; most lines have none.

    Args:
        line: The line, without its newline and without terminal colours.
        whole: It ended with a newline. Otherwise a number at its very end may be cut, and is ignored.

    >>> parse(b" iteration        2/       6 | lm loss: 9.9E+00 | TFLO")
    [Step(iteration=2, train_iterations=6, values={'lm loss': 9.9}, tag='', time='', is_cut=False)]
    """
    if whole and (at := line.find(_STEP_WORD)) >= 0 and (known := _of_layout(line, 0, at, len(line))):
        return [known]
    if whole and (table := _OF_TABLE.fullmatch(line)):
        return [Timer(_text(table[1]), float(table[3]), least=float(table[2]))]
    step = _STEP.search(line)
    if (
        step is not None
        and line.endswith(b"|")
        and line.find(b"[", step.end()) < 0
        and b"loss at" not in line
        and not line.count(b"|", 0, step.start())
    ):
        # By far the most frequent line, and no other rank wrote into it.
        steps = list(_steps(line, step, whole))
        _add_layout(line[step.end() :], steps)
        return [*steps]
    found: list[Record] = []
    if step is not None:
        found += _steps(line, step, whole)
    if b"checkpoint" in line:
        found += [
            Checkpoint(match[1].decode(), int(match[2]))
            for match in _CHECKPOINT.finditer(line)
            if whole or match.end() < len(line)
        ]
    if b"loss at " in line or b"results at " in line:
        found += _evaluations(line)
    if b"memory (MB)" in line:
        found += _memories(line, whole)
    if b"] datetime: " in line:
        found += [Milestone(_text(m[1]), m[2].decode()) for m in _MILESTONE.finditer(line)]
    if _SETUP in line:
        found.append(Milestone("done with setup", ""))
    if b"time (ms) |" in line:
        found += _timers(line, whole)
    if b" ..." in line:
        found += _dotted(line, whole)
    if b"iter time (s): " in line:
        found += _pipeline(line, whole)
    if b", skipped=" in line:
        found += _engine(line)
    if b"CurrSamplesPerSec=" in line:
        found += _throughputs(line)
    if step is None and b"loss" in line:
        found += _of_others(line, whole)
    return found


def of_steps(data: bytes, *, whole: bool) -> Iterator[tuple[int, int, Step | None]]:
    """Yield the begin and the end of each line with ``_STEP_WORD``, and its record if its layout is known.

    Args:
        data: Lines.
        whole: The last one has its newline.
    """
    end = 0
    while (position := data.find(_STEP_WORD, end)) >= 0:
        start = data.rfind(b"\n", end, position) + 1
        end = data.find(b"\n", position)
        if end < 0:
            end = len(data)
        yield start, end, _of_layout(data, start, position, end) if whole or end < len(data) else None


def _of_layout(data: bytes, start: int, position: int, end: int) -> Step | None:
    """Return the training line between two positions, if an earlier one had the same fields; else None."""
    for pattern, names in _layouts:
        match = pattern.fullmatch(data, position, end)
        if match is None:
            continue
        number, total, *texts = match.groups()
        iteration, train_iterations = int(number), 0 if total == b"infinity" else int(total)
        head = data[start:position]
        if iteration > (train_iterations or iteration) or b"|" in head:
            return None
        try:
            values = dict(zip(names, map(float, texts), strict=True))
        except ValueError:
            return None
        tag, time = _prefix(head) if len(head) > 1 else ("", "")
        return Step(iteration, train_iterations, values, tag, time)
    return None


def _add_layout(text: bytes, found: Sequence[Step | Memory]) -> None:
    """Remember the layout of a training line, if each field became one value.

    Args:
        text: The line after the number of its step.
        found: Its records.
    """
    if len(_layouts) == _MOST_LAYOUTS:
        return
    keys = [part.rpartition(b":")[0] for part in text.split(b"|")[:-1]]
    names = tuple(_field_name(key) for key in keys)
    steps = [tuple(one.values) for one in found if isinstance(one, Step)]
    if len(found) == 1 and steps == [names]:
        fields = b"".join(re.escape(key) + rb": *+([^ |:]++) *+\|" for key in keys)
        layout = _Layout(re.compile(_STEP.pattern + fields), names)
        # A line whose numbers have another notation is parsed each time, and may be of a known layout.
        if layout not in _layouts:
            _layouts.append(layout)


def loss_name(values: dict[str, float]) -> str:
    """Return the name of the loss among the fields of a training line; empty when it has none.

    Without ``lm loss``, it is the first name that ends in ``loss``, such as ``mlm loss``.
    """
    if "lm loss" in values:
        return "lm loss"
    for name in values:
        if name.endswith("loss"):
            return name
    return ""


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace").strip()


@functools.lru_cache(maxsize=4096)
def _field_name(key: bytes) -> str:
    """Return Megatron's name of a field. Cached: a few names occur millions of times."""
    name = _text(key)
    return NAMES.get(name, name)


def _fields(text: bytes) -> dict[str, float]:
    """Return the fields ``name: number |`` of a text; a field without ``|`` after it is incomplete."""
    values: dict[str, float] = {}
    parts = text.split(b"|")
    del parts[-1]
    for part in parts:
        key, colon, value = part.rpartition(b":")
        if not colon:
            # Some forks write ``learning rate 1.0E-4``, without a colon.
            key, _, value = part.strip().rpartition(b" ")
        try:
            values[_field_name(key)] = float(value)
        except ValueError:
            with contextlib.suppress(ValueError):
                values[_field_name(key)] = _odd(value, comma=b"." not in text)
    return values


def _odd(value: bytes, *, comma: bool) -> float:
    """Return a number in a notation that Python's ``float`` does not read.

    Args:
        value: The number.
        comma: A comma is the decimal separator, unless there are several.

    Raises:
        ValueError: It is not a number.
    """
    # ``1423.8/1400.0``, ``615.5 (avg 610.1)``: this step's value and the average.
    text = value.partition(b"/")[0].partition(b" (avg ")[0].strip()
    if found := _NOT_FINITE.fullmatch(text):
        return math.inf if found[1] else math.nan
    if found := _FLOPS.fullmatch(text):
        return float(found[1]) * 1000.0 ** (_PREFIXES.index(found[2]) - _PREFIXES.index(b"T"))
    if _THOUSANDS.fullmatch(text) and not (comma and text.count(b",") == 1):
        return float(text.replace(b",", b""))
    return float(text.replace(b",", b".")) if comma else float(text)


def _in_milliseconds(values: dict[str, float]) -> dict[str, float]:
    if SECONDS in values:
        values[MILLISECONDS] = values.pop(SECONDS) * 1000.0
    return values


def _rank_of(tag: str) -> int:
    """Return the rank in a launcher's tag; 0 if it has none."""
    found = _RANK.search(tag)
    return int(found[1]) if found else 0


def _steps(line: bytes, match: re.Match[bytes], whole: bool) -> Iterator[Step | Memory]:
    """Yield the training lines in a line, and the memory that they report.

    Args:
        line: The line.
        match: The match of the first training line's beginning.
        whole: As for ``parse``.
    """
    before = 0
    following: re.Match[bytes] | None = match
    while following is not None:
        match = following
        start, end = match.span()
        following = _STEP.search(line, end)
        text = line[end : following.start()] if following else line[end:]
        is_cut = is_torn = not whole and following is None
        if b"[" in text:
            # Another rank wrote into the middle of this line.
            text, is_cut, is_torn = text[: text.index(b"[")], True, False
        head = line[before:start]
        if not is_cut and not text.endswith(b"|") and any(one.search(head) for one in _OPEN):
            text += b"|"
        values = _in_milliseconds(_fields(text))
        if b"|" in head and (first := _FIELD_BEFORE.search(head)):
            values, head = {**_fields(head[first.start() :]), **values}, head[: first.start()]
        iteration, total = match.groups()
        tag, time = _prefix(head) if len(head) > 1 else ("", "")
        number, most = int(iteration), 0 if total == b"infinity" else int(total)
        # A step beyond the last one is garbage.
        if number <= (most or number):
            sizes = {MEMORY[name]: values.pop(name) / _MEBI for name in MEMORY if name in values}
            yield Step(number, most, values, tag, time, is_cut, is_torn=is_torn)
            if sizes:
                yield Memory(_rank_of(tag), number, sizes)
        before = end + len(text)


def _prefix(text: bytes) -> tuple[str, str]:
    """Return the launcher's tag and the time in the text before a training line."""
    time = _TIME.search(text)
    tag = _TAG.match(text.lstrip())
    if tag is not None and time is not None and time[0].startswith(tag[0].rstrip(b":")):
        tag = None
    return (
        _text(tag[1]).rstrip(":") if tag else "",
        time[1].decode().replace("T", " ") if time else "",
    )


def _evaluations(line: bytes) -> Iterator[Evaluation]:
    for match in _EVALUATION.finditer(line):
        where = _text(match[1])
        yield Evaluation(where, _fields(match[2]))


def _memories(line: bytes, whole: bool) -> Iterator[Memory]:
    for match in _MEMORY.finditer(line):
        sizes: dict[str, float] = {}
        position = match.end()
        while field := _MEMORY_FIELD.match(line, position):
            if field.end() == len(line) and not field[3] and not whole:
                break
            sizes[_field_name(field[1])] = float(field[2])
            position = field.end()
        yield Memory(int(match[1]), int(match[2]), sizes)


def _timers(line: bytes, whole: bool) -> Iterator[Timer]:
    """Yield the timers of a line ``time (ms) | forward: 1.0 | backward: 2.0``."""
    text = line[_TIMES.search(line).end() :]  # type: ignore[union-attr]  # the caller has looked
    if whole and not text.rstrip().endswith(b"|"):
        text += b"|"
    for name, value in _fields(text).items():
        yield Timer(name, value)


def _dotted(line: bytes, whole: bool) -> Iterator[Timer | Argument]:
    match = _DOTTED.search(line)
    if match is None or not whole:
        return
    name, value = _text(match[1]), match[2]
    if both := _MIN_MAX.match(value):
        yield Timer(name, float(both[2]), least=float(both[1]))
    elif most := _MAX.match(value):
        yield Timer(name, float(most[1]))
    elif value.startswith(b" "):
        yield Argument(name, _text(value))


def _pipeline(line: bytes, whole: bool) -> Iterator[EngineStep]:
    for match in _PIPELINE.finditer(line):
        values = {MILLISECONDS: float(match[3]) * 1000.0}
        if whole or match.end() < len(line) or match[5]:
            values["samples per second"] = float(match[4])
        with contextlib.suppress(ValueError):
            values["lm loss"] = float(match[2])
        yield EngineStep(int(match[1]), values, _moment(line, match.start()))


def _engine(line: bytes) -> Iterator[EngineStep]:
    for match in _ENGINE.finditer(line):
        values = {"skipped": float(match[2])}
        # The line may be cut within the rate.
        if line[match.end() : match.end() + 1] in (b"]", b","):
            with contextlib.suppress(ValueError):
                values["learning rate"] = float(match[3])
        yield EngineStep(int(match[1]), values, _moment(line, match.start()))


def _moment(line: bytes, end: int) -> str:
    """Return the last time that DeepSpeed's logger wrote before a position; empty if there is none."""
    found = _MOMENT.findall(line, 0, end)
    return found[-1].decode().replace(",", ".") if found else ""


def _throughputs(line: bytes) -> Iterator[Throughput]:
    """Yield what DeepSpeed's ``ThroughputTimer`` logs in a line, except its average over all steps so far."""
    for text in _THROUGHPUT.split(line)[1:]:
        values: dict[str, float] = {}
        if samples := _SAMPLES.search(text):
            with contextlib.suppress(ValueError):
                values["samples per second"] = float(samples[1])
        sizes = {
            "max allocated" if most else "allocated": float(size) * 1024.0
            for most, size in _ALLOCATED.findall(text)
        }
        if values or sizes:
            yield Throughput(values, sizes)


def _of_others(line: bytes, whole: bool) -> Iterator[Record]:
    """Yield the records of programs with their own line formats."""
    for grammar in OWN:
        if grammar.evaluation is not None and (match := grammar.evaluation.search(line)):
            values, _ = _pairs(grammar, match, whole or match.end() < len(line))
            of = match.groupdict()
            where = f"iteration {int(of['step'])}" if "step" in of else _NO_NAME.sub(" ", _text(of["where"]))
            evaluated = {name: value for name, value in values.items() if _EVALUATED.fullmatch(name)}
            yield Evaluation(where, {_value_name(name): value for name, value in evaluated.items()})
        elif grammar.step is not None and (match := grammar.step.search(line)):
            yield from _own_step(grammar, line, match, whole)
        elif grammar.done is not None and grammar.done.search(line):
            yield Milestone(DONE, "")


def _value_name(name: str) -> str:
    """Return Megatron's name of an evaluation's figure: other programs' ``eval_loss`` is ``loss value``."""
    return f"{name.removeprefix('eval_')} value"


def _own_step(grammar: Grammar, line: bytes, match: re.Match[bytes], whole: bool) -> Iterator[Step | Memory]:
    """Yield a step, and the memory that its line reports."""
    is_whole = whole or match.end() < len(line)
    values, sizes = _pairs(grammar, match, is_whole)
    start = match.start()
    tag, time = _prefix(line[:start]) if start else ("", "")
    if time and (clock := _CLOCK.search(line, 0, start)):
        time = clock[0].decode().replace("T", " ").replace(",", ".")
    step = match["step"] if "step" in match.re.groupindex else None
    number, total = int(step or 0), 0
    both = _STEP_OF.search(match["fields"]) if _STEP_OF_WORD in line else None
    if both:
        number, total = int(both[1]), int(both[2])
    is_numbered = step is not None or both is not None
    yield Step(number, total, values, tag, time, not is_whole, is_numbered, not is_whole)
    if sizes:
        yield Memory(_rank_of(tag), number, sizes)


def _pairs(
    grammar: Grammar, match: re.Match[bytes], whole: bool
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the fields of another program's line, by Megatron's names, and its memory in MiB."""
    values: dict[str, float] = {}
    sizes: dict[str, float] = {}
    fields = match["fields"]
    if whole:
        pairs = grammar.pair.findall(fields)
    else:
        # A field at the very end may be cut.
        found = grammar.pair.finditer(fields)
        pairs = [pair.groups(b"") for pair in found if pair.end() < len(fields)]
    for name, text, unit in pairs:
        try:
            number = float(text.replace(b",", b"") if b"," in text else text)
        except ValueError:
            continue
        if unit == b"GiB":
            sizes["max reserved"] = number * 1024.0
        else:
            values[_field_name(name)] = number
    return _in_milliseconds(values), sizes
