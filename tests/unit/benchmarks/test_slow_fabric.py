# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of a slow fabric: what its command line refuses before anything is measured."""

from __future__ import annotations

import pytest

from benchmarks import slow_fabric


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ways", "ours,dpp"], "--ways dpp is unknown; there are ours, ours-bf16, ddp, fsdp2, fsdp2-bf16"),
        (["--bandwidths", "25,fast"], "--bandwidths: '25,fast' is no list of GB/s such as 1.25,25,0"),
        (["--bandwidths=-5"], "--bandwidths: '-5' is no list of GB/s such as 1.25,25,0"),
        (["--shape", "GPT-1.4B"], "--shape GPT-1.4B is unknown; there are GPT-345M, "),
    ],
)
def test_a_wrong_name_is_refused_at_once(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["slow_fabric.py", *words])
    with pytest.raises(SystemExit, match="2"):
        slow_fabric.arguments()
    assert message in capsys.readouterr().err
