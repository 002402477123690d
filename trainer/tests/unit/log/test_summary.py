# SPDX-License-Identifier: GPL-3.0-or-later
"""The summary of a job's files: runs, their figures, and one table."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.figures import Curve, Largest, Sample, quantile
from rdm_log.records import Step
from rdm_log.runs import runs
from rdm_log.summary import NothingToRead, summarise
from tests.unit.conftest import Program

CORPUS = Path(__file__).parent / "corpus"
START = "[after megatron is initialized] datetime: 2023-06-14 16:0{minute}:12 \n"


def line(number: int, time: float = 100.0, loss: float | str = 5.0, tag: str = "", more: str = "") -> str:
    return (
        f"{tag} iteration {number:8d}/     100 | consumed samples: {number * 8:12d} |"
        f" elapsed time per iteration (ms): {time:.1f} | learning rate: 1.000E-04 |"
        " global batch size:     8 |"
        f" lm loss: {loss} | loss scale: 1.0 | grad norm: 1.500 | number of skipped iterations:   0 |"
        f" number of nan iterations:   0 |{more}\n"
    )


def summary(tmp_path: Path, **files: str | Iterable[str]) -> dict[str, Any]:
    paths = []
    for name, text in files.items():
        path = tmp_path / f"{name}.out"
        path.write_text(text if isinstance(text, str) else "".join(text))
        paths.append(path)
    return summarise(paths).to_json()


def test_the_documents_sample_gives_its_numbers() -> None:
    (run,) = summarise([CORPUS / "sample.txt"]).runs
    assert (run["first_iteration"], run["last_iteration"], run["train_iterations"]) == (30, 50, 50)
    step = run["step_ms"]
    assert (step["first"], step["median"], step["outliers"]) == (1423.8, 1391.85, [])
    assert step["p95"] == pytest.approx(1408.005)
    assert run["loss"]["curve"] == [[30, 10.17721], [40, 9.237929], [50, 8.917599]]
    assert run["loss"]["lowest_at"] == 50
    assert run["samples_per_second"] == pytest.approx(64 / 1.39185)
    assert run["learning_rate"] == 1.641e-06
    assert run["grad_norm"] == {"last": 2.932, "highest": 16.666}
    assert run["loss_scale"] == 262144
    assert run["memory_mib"]["24"]["max reserved"] == 4020
    assert run["milestones"] == {"before the start of training step": "2023-06-14 16:08:12"}
    json.dumps(run, allow_nan=False)


def test_one_run_and_its_figures(tmp_path: Path) -> None:
    times = [900.0, *[100.0 + n % 5 for n in range(2, 40)], 450.0, 101.0]
    lines = [line(n, time, 6.0 - n / 10) for n, time in enumerate(times, 1)]
    (run,) = summary(tmp_path, n1=lines)["runs"]
    assert run["lines"] == run["last_iteration"] == 41
    # The first step builds and warms up; it is reported separately.
    assert run["step_ms"]["first"] == 900
    assert run["step_ms"]["median"] == statistics.median(times[1:])
    assert run["step_ms"]["outliers"] == [[40, 450.0]]
    assert run["loss"]["first"] == 5.9
    assert run["loss"]["lowest_at"] == 41
    assert run["skipped"] == run["nan"] == 0


def test_restart_begins_a_run_with_and_without_a_message(tmp_path: Path) -> None:
    before = [line(n) for n in range(1, 8)]
    after = [line(n, loss=4.0) for n in range(6, 12)]
    for text in (
        [*before, *after],
        [START.format(minute=1), *before, START.format(minute=5), *after],
        # It began again, and reached no step before it began once more.
        [START.format(minute=1), *before, START.format(minute=5), *after, START.format(minute=9)],
    ):
        found = summary(tmp_path, n1=text)
        assert [(run["first_iteration"], run["last_iteration"]) for run in found["runs"] if run["lines"]] == [
            (1, 7),
            (6, 11),
        ]
    assert found["restarts"] == 2


def test_the_same_step_again_after_a_restart_is_another_run(tmp_path: Path) -> None:
    found = summary(tmp_path, n1=[line(1), line(2), line(2, time=300.0), line(3)])
    assert [run["lines"] for run in found["runs"]] == [2, 2]


def test_ranks_that_log_the_same_are_one(tmp_path: Path) -> None:
    order = [(1, 6), (1, 7), (2, 7), (3, 7), (2, 6), (3, 6), (4, 6), (4, 7)]
    found = summary(tmp_path, n1=[line(n, 100 + rank, tag=f"[default{rank}]:") for n, rank in order])
    (run,) = found["runs"]
    assert run["lines"] == 4
    again = summary(tmp_path, n2=[line(1), line(1, 100.1), line(2), line(2, 99.9)])
    assert [run["lines"] for run in again["runs"]] == [2]


def test_ranks_that_each_write_a_step_with_their_own_time_are_one(tmp_path: Path) -> None:
    ranks = [line(n, 100 + 9 * rank) for n in range(1, 31) for rank in range(3)]
    # Some ranks' lines come late.
    for n in (12, 40, 41):
        ranks[n], ranks[n + 1] = ranks[n + 1], ranks[n]
    assert summary(tmp_path, n1=ranks)["restarts"] == 0
    # Steps that are written again after a restart are another run, also if several ranks write.
    again = [line(n, 150 + 9 * rank) for n in range(21, 31) for rank in range(3)]
    found = summary(tmp_path, n1=[*ranks, *again])
    assert [run["lines"] for run in found["runs"]] == [30, 10]
    # A first step that was taken twice does not make a second rank.
    found = summary(tmp_path, n1=[line(1), line(1, 130.0), *map(line, range(2, 20)), line(19, 130.0)])
    assert [run["lines"] for run in found["runs"]] == [19, 1]


@pytest.mark.parametrize("begin", [0, 37])
@pytest.mark.parametrize("lines", [100, 20_000])
def test_excerpt_of_a_log_is_a_copy(begin: int, lines: int, tmp_path: Path) -> None:
    fields = "elapsed time per iteration (ms): {:.1f} | lm loss: {:.2f} |{}\n"
    text = [
        f" iteration {n}/ {lines} | "
        + fields.format(100 + n % 7 / 10, 9 - n % 50 / 100, " x: 1 |" * (n % 9 < 1))
        for n in range(1, lines + 1)
    ]
    part = text[begin : begin + 20 + lines // 10]
    found = summary(tmp_path, n060=text, n061=part, n062=["", *part[:10], part[10][:-60]])
    assert (found["restarts"], [run["lines"] for run in found["runs"]]) == (0, [lines])
    # The same steps with other times were taken again.
    again = [one.replace("(ms): 100.", "(ms): 101.") for one in part]
    assert summary(tmp_path, n060=text, n061=again, n062="")["restarts"] == 1


@given(
    times=st.lists(st.floats(50, 200), min_size=8, max_size=40),
    length=st.floats(0.2, 1),
    slower=st.floats(0.5, 2),
    later=st.integers(0, 3),
)
def test_ranks_in_files_of_their_own_are_one_run(
    times: list[float], length: float, slower: float, later: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("ranks")

    def lines(count: int, delay: int, factor: float) -> list[str]:
        return [
            line(n, time * factor, 9 - n / 10, tag=f" [2026-11-22 10:{n + 10}:{10 + delay}]")
            for n, time in enumerate(times[:count], 1)
        ]

    # The other's clock differs by some seconds, and its log ends earlier.
    part = lines(max(2, int(length * len(times)) - 1), later, slower)
    found = summary(tmp_path, n1=lines(len(times), 0, 1.0), n2=part)
    assert (found["restarts"], [run["lines"] for run in found["runs"]]) == (0, [len(times)])
    # Steps that are taken again have the same losses, and are taken later.
    again = [one.replace("2026-11-22", "2026-11-23") for one in lines(len(part), later, slower * 1.5)]
    assert summary(tmp_path, n1=lines(len(times), 0, 1.0), n2=again)["restarts"] == 1


def test_files_of_nodes_are_one_job(tmp_path: Path) -> None:
    memory = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.0 | max allocated: 20480.0\n"
    first = [START.format(minute=1), memory, START.format(minute=5), memory.replace("20480", "30720")]
    found = summary(tmp_path, n1=first, n2=[line(1), line(2), line(2, 500.0), line(3)], n3="nothing\n")
    assert found["restarts"] == 1
    assert [run["file"] for run in found["runs"]] == ["n2.out", "n2.out"]
    assert [run["memory_mib"]["0"]["max allocated"] for run in found["runs"]] == [20480, 30720]
    assert found["runs"][1]["first_time"] == "2023-06-14 16:05:12"
    # A copy of the whole output adds nothing.
    copied = summary(tmp_path, n2=[line(1), line(2)], all=[line(1), line(2)])
    assert len(copied["runs"]) == 1


def test_a_log_that_was_rotated_is_one(tmp_path: Path) -> None:
    text = "".join(line(n) for n in range(1, 30))
    third = len(text) // 3
    for name, part in {"a.out.2": text[:third], "a.out.1": text[third : 2 * third]}.items():
        (tmp_path / name).write_text(part)
    (tmp_path / "a.out").write_text(text[2 * third :])
    (run,) = summarise([tmp_path]).runs
    assert (run["lines"], run["last_iteration"]) == (29, 29)


def test_losses_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    (run,) = summary(tmp_path, n1=[line(1), line(2, loss="nan"), line(3, loss="inf"), line(4)])["runs"]
    assert run["loss"]["not_finite"] == 2
    assert run["loss"]["last"] == 5.0


def test_tokens_from_the_sequence_length_in_the_log(tmp_path: Path) -> None:
    arguments = f"  seq_length {'.' * 38} 1024\n"
    (run,) = summary(tmp_path, n1=[arguments, line(1), line(2)])["runs"]
    assert run["tokens_per_second"] == pytest.approx(8 / 0.1 * 1024)
    (run,) = summary(tmp_path, n1=[line(2, more=" consumed tokens:    8192 |")])["runs"]
    assert run["tokens_per_second"] == pytest.approx(8 / 0.1 * 512)


def test_deepspeed_alone(tmp_path: Path) -> None:
    (run,) = summary(
        tmp_path,
        n1=[
            f"[Rank 0] step={n}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]\n"
            f"steps: {n} loss: {9 - n / 10:.4f} iter time (s): 0.512 samples/sec: 125.000\n"
            for n in range(10, 40, 10)
        ],
    )["runs"]
    assert (run["lines"], run["last_iteration"], run["loss"]["last"]) == (3, 30, 6.0)
    assert run["step_ms"]["median"] == 512
    assert (run["learning_rate"], run["samples_per_second"]) == (0.001, 125)


def test_deepspeed_without_a_pipeline(tmp_path: Path) -> None:
    """It resumes from a checkpoint; its timer counts only from there on."""
    text = "".join(
        f"[Rank 0] step={1000 + n}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]\n"
        f"[timer.py:264:stop] epoch=0/micro_step={2 * n}/global_step={n}, RunningAvgSamplesPerSec=15.5, "
        f"CurrSamplesPerSec={n}.25, MemAllocated=1.0GB, MaxMemAllocated={n}.5GB\n"
        for n in (10, 30, 20)
    )
    (run,) = summary(tmp_path, n1=[text.replace("=1030,", "=1015,")])["runs"]
    assert (run["lines"], run["last_iteration"], run["samples_per_second"]) == (3, 1020, 20.25)
    assert run["memory_mib"] == {"0": {"allocated": 1024.0, "max allocated": 30.5 * 1024}}


HUGGING = "{{'loss': {:.2f}, 'grad_norm': 1.25, 'learning_rate': 2e-05, 'epoch': {:.2f}}}\n"
BAR = "\r {:3d}%|██   | {}/50 [00:17<01:06,  1.60s/it]"


@pytest.mark.parametrize("bars", [True, False])
def test_steps_that_no_line_numbers_are_counted_or_read_from_a_bar(bars: bool, tmp_path: Path) -> None:
    def attempt(first: int) -> Iterator[str]:
        for n in range(first, 6):
            # The bar of an evaluation may stand before the next line, or one that comes late.
            late = 10 * (n - 1 if (first, n) == (1, 4) else n)
            yield f"{BAR.format(2 * late, late)}\n" * bars + HUGGING.format(9 - n, n / 5)

    done = "{'train_runtime': 85.45, 'train_loss': 5.0, 'epoch': 1.0}\n"
    found = summary(tmp_path, n1=[*attempt(1), *attempt(3), done])
    whole, again = found["runs"]
    assert (whole["lines"], again["lines"], found["restarts"]) == (5, 3, 1)
    assert again["loss"]["curve"] == (
        [[30, 6.0], [40, 5.0], [50, 4.0]] if bars else [[1, 6.0], [2, 5.0], [3, 4.0]]
    )
    assert (again["train_iterations"], again["step_ms"]["median"]) == ((50, 1600.0) if bars else (0, None))
    assert again["milestones"] == {"after training is done": ""}
    # LLaMA-Factory writes each line twice.
    twice = [one for one in attempt(1) for one in (one, one.rpartition("it]")[2])]
    assert [run["lines"] for run in summary(tmp_path, n1=twice)["runs"]] == [5]


def test_torchtitan_logs_its_steps_at_the_head_and_their_time_by_the_clock(tmp_path: Path) -> None:
    before = "[rank{}]:[titan] 2025-02-04 10:11:{:02d},131 - root - INFO - "
    head = (
        "Trainer is initialized with local batch size 8, global batch size 64, sequence length 8192, total "
        "steps 40 (warmup 2)\n"
    )
    step = "step: {:2}  loss:  7.9126  grad_norm: 1.2345  memory: 38.22GiB(48.33%)  tps: 7,712  mfu: 39.45%\n"
    ranks = [before.format(0, 1) + head]
    ranks += [
        before.format(rank, 5 * n + rank) + step.format(10 * n) for n in range(1, 5) for rank in range(2)
    ]
    (run,) = summary(tmp_path, n1=ranks)["runs"]
    assert (run["lines"], run["last_iteration"], run["train_iterations"]) == (4, 40, 40)
    assert (run["step_ms"]["median"], run["mfu_percent"]) == (500.0, 39.45)
    assert {rank: round(sizes["max reserved"]) for rank, sizes in run["memory_mib"].items()} == {
        "0": 39137,
        "1": 39137,
    }


def test_digits_that_are_no_date_give_no_time(tmp_path: Path) -> None:
    lines = [f"[titan] 2025-13-45 10:11:1{n},131 - root - INFO - step: {n}  loss: 7.9\n" for n in range(1, 4)]
    (run,) = summary(tmp_path, n1=lines)["runs"]
    assert (run["lines"], run["step_ms"]["median"]) == (3, None)


@pytest.mark.parametrize("end", [40, 90, 130, 200, 260])
def test_missing_fields_of_a_cut_last_line_come_from_the_line_before(end: int, tmp_path: Path) -> None:
    before = [line(n, more=" tokens per gpu per second (tgs): 950.0 | TFLOPs: 41.5 |") for n in range(1, 4)]
    cut = line(4, time=101.0, loss=4.0)[:end]
    for text in ([*before, cut], [*before, cut, "[default1]: n2 writes into it\n"]):
        (run,) = summary(tmp_path, n1=text)["runs"]
        assert run["last_iteration"] == 4
        assert run["samples_per_second"] == pytest.approx(8 / run["step_ms"]["median"] * 1000)
        figures = (
            run["learning_rate"],
            run["grad_norm"]["last"],
            run["tflops"],
            run["tokens_per_gpu_per_second"],
        )
        assert figures == (1e-4, 1.5, 41.5, 950.0)
    # A complete line has only its own fields.
    (run,) = summary(tmp_path, n1=[*before, line(4)])["runs"]
    assert run["tflops"] is None


def test_skipped_steps_of_an_engine_are_those_since_the_training_began(tmp_path: Path) -> None:
    def skipped(*steps: tuple[int, int]) -> int:
        lines = [f"[Rank 0] step={step}, skipped={count}, lr=[0.001], mom=[]\n" for step, count in steps]
        (run,) = summary(tmp_path, n1=lines)["runs"]
        return int(run["skipped"])

    assert skipped((10, 1), (20, 1), (30, 1)) == 1
    assert skipped((10, 1), (20, 4)) == 4
    # Steps skipped before the checkpoint from which it resumes are not this run's.
    assert skipped((1010, 7), (1020, 7), (1030, 9)) == 2


def test_timers_name_the_slowest_rank(tmp_path: Path) -> None:
    block = "times across ranks (ms):\n  forward-backward:\n     rank  0: 10.0\n     rank  1: 30.0\n"
    (run,) = summary(tmp_path, n1=[line(1), block, line(2), block])["runs"]
    assert run["timers"] == [
        {
            "name": "forward-backward",
            "count": 4,
            "mean_ms": 20.0,
            "longest_ms": 30.0,
            "slowest_rank": 1,
            "slowest_rank_mean_ms": 30.0,
        }
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("hello\n", "has no line ` iteration N/M |` of a training: found 6 bytes."),
        (START.format(minute=1), "of a training that came to 'after megatron is initialized'"),
    ],
)
def test_file_that_is_no_log_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "n1.out").write_text(text)
    with pytest.raises(NothingToRead) as error:
        summarise([tmp_path])
    assert problem in str(error.value)
    assert str(tmp_path / "n1.out") in str(error.value)


def test_the_command(tmp_path: Path, program: Program) -> None:
    code, out, _ = program("log", "summary", CORPUS / "sample.txt")
    assert code == 0
    for words in ("30 to 50 of 50", "10.1772 to 8.9176", "median 1,391.", "46.0 samples/s", "3.9 GiB"):
        assert words in out
    _, out, _ = program("log", "summary", CORPUS / "sample.txt", "--json")
    assert json.loads(out)["runs"][0]["last_iteration"] == 50
    code, _, err = program("log", "summary", tmp_path / "absent.out")
    assert code == 3
    assert f"There is no file {tmp_path}/absent.out." in err


# --- figures in bounded memory


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=500), st.integers(2, 64))
def test_a_sample_keeps_few_and_a_curve_its_ends(values: list[float], most: int) -> None:
    sample, curve, largest = Sample(most), Curve(most), Largest(3)
    for x, value in enumerate(values):
        sample.add(value)
        curve.add(x, value)
        largest.add(value, x)
    kept = sample.ordered()
    assert 1 <= len(kept) <= most
    assert kept == sorted(kept)
    assert min(values) <= quantile(kept, 0.5) <= max(values)
    points = curve.points()
    assert len(points) <= 2 * most + 1
    assert points[0] == (0, values[0])
    assert points[-1] == (len(values) - 1, values[-1])
    assert [value for value, _ in largest.ordered()] == sorted(values, reverse=True)[:3]


def test_quantiles_of_a_long_run_are_those_of_all() -> None:
    sample = Sample(1024)
    for n in range(100_000):
        sample.add(float((n * 7919) % 100_003))
    assert quantile(sample.ordered(), 0.95) == pytest.approx(95_000, rel=0.02)


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=20), min_size=1, max_size=5))
def test_runs_are_split_at_their_restarts(lengths: list[list[int]]) -> None:
    """Each run's iterations rise by arbitrary intervals; the next run begins at or below its end."""
    steps: list[Step] = []
    known = []
    for number, intervals in enumerate(lengths):
        numbers = [sum(intervals[: n + 1]) for n in range(len(intervals))]
        if steps and numbers[0] > steps[-1].iteration:
            continue
        steps += [Step(n, 100, {"lm loss": number + n / 100}) for n in numbers]
        known.append((numbers[0], numbers[-1]))
    assert [(run.first_iteration, run.last_iteration) for run in runs(steps)] == known


@pytest.mark.parametrize(
    ("begins", "problem"),
    [
        (
            gzip.compress(b" iteration 1/ 2 |", mtime=0),
            "compressed: write it out as text first, with `zcat`.",
        ),
        (
            " iteration 1/ 2 |".encode("utf-16"),
            "in UTF-16: write it out as text first, with `iconv -f UTF-16",
        ),
    ],
)
def test_log_that_is_no_plain_text_is_named_by_its_format(
    tmp_path: Path, begins: bytes, problem: str
) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(begins)
    with pytest.raises(NothingToRead, match=re.escape(f"run.log is {problem}")):
        summarise([log])


def test_directory_without_logs_is_refused_with_a_hint(program: Program, tmp_path: Path) -> None:
    (tmp_path / "progress.json").write_text("{}")
    code, _, err = program("log", "summary", tmp_path)
    assert code == 3
    found = f"{tmp_path} has no .out files: it has progress.json"
    assert f"{found}; give a directory with NODE.out, or a file with what the training printed." in err
