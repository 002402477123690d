"""Write the output of a command on a terminal as an SVG.

::

    python docs/take_picture.py OUT.svg COMMAND…
"""

from __future__ import annotations

import io
import os
import pty
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 110


def screen(argv: list[str]) -> str:
    """Return the command's output with its colours, without lines that live progress overwrote."""
    os.environ.update(COLUMNS=str(WIDTH), LINES="60", TERM="xterm-256color")
    kept = bytearray()

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        kept.extend(data)
        return data

    pty.spawn(argv, read)
    return _replay(kept.decode(errors="replace"))


def _replay(stream: str) -> str:
    """Replay cursor movements line by line: up (``ESC[nA``), erase line (``ESC[2K``), carriage return."""
    lines, row = [""], 0
    position = 0
    while position < len(stream):
        char = stream[position]
        if char == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif char == "\r":
            pass
        elif char == "\x1b" and stream[position + 1 : position + 2] == "[":
            end = position + 2
            while not stream[end].isalpha():
                end += 1
            number = stream[position + 2 : end]
            if stream[end] == "A":
                row = max(0, row - int(number or 1))
            elif stream[end] == "K":
                lines[row] = ""
            elif stream[end] == "m":
                lines[row] += stream[position : end + 1]
            position = end
        else:
            lines[row] += char
        position += 1
    return "\n".join(lines)


if __name__ == "__main__":
    target, *command = sys.argv[1:]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ " + " ".join(command), style="bold"))
    console.print(Text.from_ansi(screen(command)))
    Path(target).write_text(console.export_svg(title="rdm-provision"), encoding="utf-8")
