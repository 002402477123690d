# SPDX-License-Identifier: GPL-3.0-or-later
"""The sections of get_result: the document's own directory gives the document's own output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rdm_log.sections import Section, sections, text
from rdm_log.tails import count_lines, tail
from tests.unit.conftest import Program

SAMPLE = (Path(__file__).parent / "corpus/sample.txt").read_text()
NODES = [f"n{number:03d}" for number in range(60, 68)]
TIMES = (4541.6, 1401.5, 1423.8, 1373.9, 1409.8)


def section_lines(title: str) -> list[str]:
    """Return the lines of a section of the document's sample."""
    rule = "*" * 19
    return SAMPLE.split(f"{rule} {title} {rule}\n")[1].split(rule)[0].rstrip("\n").split("\n")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A directory as the document's job left it: its lines, and as many others as it had."""
    directory = tmp_path / "log2" / "10932251"
    directory.mkdir(parents=True)
    info = [line for line in section_lines("job info 10932251") if not line.startswith("items")]
    steps = [line for line in SAMPLE.splitlines() if line.startswith(" iteration ")]
    first = [
        steps[0].replace("      30/", f"      {n}/").replace("1423.8", f"{time}")
        for n, time in zip((10, 20), TIMES, strict=False)
    ]
    gpu = {
        name: [f"[{n}] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |" for n in range(4)]
        for name in NODES
    }
    for number, name in enumerate(NODES):
        out = [name, *info]
        out[1] = f"NODE_RANK: {number}"
        if name == "n067":
            out += [*first, *steps]
        lines = 1548 - 193 * 7 if name == "n067" else 193
        _write(directory / f"{name}.out", [*out[:15], *[""] * (lines - len(out)), *out[15:]])
        errors = 301 - 37 * 7 if name == "n067" else 37
        _write(directory / f"{name}.err", ["  warnings.warn("] * errors)
        _write(directory / f"{name}.gpu", gpu[name] * (5040 // 8 // 4) + [""] * (5040 // 8 % 4))
    for name in NODES:
        path = directory / f"{name}.gpu"
        records = path.read_text().rstrip("\n").split("\n")
        _write(path, [*[""] * (630 - len(records)), *records])
    return directory


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))


def test_the_documents_directory_gives_the_documents_output(job: Path) -> None:
    found = {section.title: section for section in sections(job, "10932251")}
    assert list(found) == [
        "last output message",
        "last error message",
        "last gpu message",
        "job info 10932251",
        "iteration time",
    ]
    out = found["last output message"]
    assert list(out.lines[-4:]) == [
        f"==> {job}/n067.out <==",
        *[line for line in SAMPLE.splitlines() if line.startswith(" iteration ")],
    ]
    assert [found[f"last {word} message"].total for word in ("output", "error", "gpu")] == [1548, 301, 5040]
    assert found["last error message"].lines[-2:] == (f"==> {job}/n067.err <==", "  warnings.warn(")
    assert found["last gpu message"].lines[1:7] == (
        f"==> {job}/n060.gpu <==",
        *[f"[{n}] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |" for n in range(4)],
        "",
    )
    # Every line of these sections is the document's.
    for title in ("job info 10932251", "iteration time"):
        assert list(found[title].lines) == section_lines(title)


def test_the_command(job: Path, program: Program, tmp_path: Path) -> None:
    code, out, _ = program("log", "sections", job)
    assert (code, out.rstrip()) == (0, text(sections(job, "10932251")))
    _, out, _ = program("log", "sections", job, "--json")
    assert json.loads(out)["sections"][4]["lines"][0] == "iteration 10 : 4.5416 s"
    code, _, err = program("log", "sections", tmp_path)
    assert code == 3
    assert "has no NODE.out files" in err


def test_a_nodes_own_files_and_the_given_job_info(job: Path) -> None:
    found = sections(job, "10932251", info={"NNODES": "8"}, node="n067")
    assert found[0].lines[0] == f"{job}/n067.out"
    assert found[3].lines == ("items: n067.err n067.gpu n067.out", "NNODES: 8")
    assert [section.is_whole for section in found] == [False, False, False, True, True]
    assert len(found[4].lines) == 6


def test_a_node_with_more_devices_shows_them_all(tmp_path: Path) -> None:
    _write(tmp_path / "n1.gpu", [f"[{n % 8}] NVIDIA H200 | 1 |" for n in range(24)])
    assert len(sections(tmp_path, "x")[2].lines) == 2 + 8


def test_a_node_s_devices_do_not_count_for_the_next_node_s_lines(tmp_path: Path) -> None:
    _write(tmp_path / "n1.gpu", ["[0] NVIDIA H200 | 1 |"])
    _write(tmp_path / "n2.gpu", [f"NVML has said {n}" for n in range(6)])
    assert sections(tmp_path, "x")[2].lines[-4:] == tuple(f"NVML has said {n}" for n in range(2, 6))


def test_empty_directory_is_no_error(tmp_path: Path) -> None:
    assert sections(tmp_path / "absent", "x")[0] == Section("last output message", (), 0)
    assert count_lines(tmp_path / "absent") == 0
    assert tail(tmp_path / "absent", 3) == []
