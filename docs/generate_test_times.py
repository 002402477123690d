"""Write docs/development/test-times.md from the last runs of the suites here.

Each `make suite-NAME`, and so `make test`, leaves pytest's JUnit report in .artifacts/times/. A suite without
a report keeps its section.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / ".artifacts" / "times"
PAGE = ROOT / "docs" / "development" / "test-times.md"
SHOWN_S = 5
"""A file that takes this many seconds or more has its own row."""
INTRODUCTION = """# Test times

How long each suite and each file of tests took, in seconds of wall time. A fixture counts for the test that
first needs it. `make test` runs several suites at a time, so it takes less than their sum, and a suite alone
takes less than here.

`make test test-times` writes this page; `make test-long test-times` adds what `make test` leaves out. A suite
that is not here has not been timed since it exists.
"""


def section(name: str, report: str, cores: int | None = os.cpu_count()) -> str:
    """Return the section of `make suite-NAME` from its JUnit report; `cores` are the machine's."""
    suite = ElementTree.fromstring(report).find("testsuite")  # noqa: S314 (pytest on this machine wrote it)
    assert suite is not None, "pytest has written no suite"
    files: dict[str, list[float]] = defaultdict(list)
    for case in suite.iter("testcase"):
        # The class name is the module, followed by the class if there is one.
        module = re.sub(r"\.[A-Z].*", "", case.get("classname", "")).replace(".", "/")
        files[f"{module}.py"].append(float(case.get("time", 0)))
    rows = sorted(files.items(), key=lambda row: (-sum(row[1]), row[0]))
    short = [row for row in rows if sum(row[1]) < SHOWN_S]
    lines = [
        f"| `{file}` | {len(times)} | {sum(times):,.0f} |" for file, times in rows if sum(times) >= SHOWN_S
    ]
    if short:
        times = [time for _, each in short for time in each]
        lines.append(f"| {len(short)} files below {SHOWN_S} s each | {len(times)} | {sum(times):,.0f} |")
    count, minutes = suite.get("tests"), float(suite.get("time", 0)) / 60
    return "\n".join(
        [
            f"## {name}",
            "",
            f"{suite.get('timestamp', '')[:10]}, {cores} cores: {count} tests in {minutes:.1f} min.",
            "",
            "| file | tests | s |",
            "|---|--:|--:|",
            *lines,
            "",
        ]
    )


def total(sections: dict[str, str]) -> str:
    """Return the table of suites, with the sum of those of `make test`."""
    figures = {name: re.findall(r" (\d+) tests in ([\d.]+) min", text)[0] for name, text in sections.items()}
    short = [figure for name, figure in figures.items() if not name.endswith("long")]
    tests, minutes = sum(int(count) for count, _ in short), sum(float(time) for _, time in short)
    rows = [f"| [{name}](#{name}) | {count} | {time} |" for name, (count, time) in figures.items()]
    last = f"| sum, without `make test-long` | {tests} | {minutes:.1f} |"
    return "\n".join(["| suite | tests | min |", "|---|--:|--:|", *rows, last, ""])


def page(before: str, reports: dict[str, str]) -> str:
    """Return the page.

    Args:
        before: The current page; suites without a report keep their sections.
        reports: JUnit reports, by suite.
    """
    found = re.finditer(r"^## (\S+)\n(?:(?!## ).*\n?)*", before, re.MULTILINE)
    kept = {one[1]: one[0] for one in found}
    timed = {name: section(name, report) for name, report in reports.items()}
    sections = dict(sorted((kept | timed).items()))
    return "\n".join([INTRODUCTION, total(sections), *(text.rstrip() + "\n" for text in sections.values())])


if __name__ == "__main__":
    measured = {path.stem: path.read_text(encoding="utf-8") for path in REPORTS.glob("*.xml")}
    if not measured:
        raise SystemExit("no suite has run here: make test")
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(page(written, measured), encoding="utf-8")
