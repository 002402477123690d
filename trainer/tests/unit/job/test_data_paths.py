# SPDX-License-Identifier: GPL-3.0-or-later
"""Data whose configured path is that in containers, on a host with another directory of jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_core import data_paths
from rdm_core.data_paths import JOBS
from rdm_job.check import check
from rdm_job.protocol import Node, Request

CONFIG = """\
model: {layers: 2, attention_heads: 4, hidden_size: 64}
optimisation: {global_batch_size: 4, train_iterations: 10}
data:
  blend: [/jobs/data/tokens, {prefix: /srv/tokens, weight: 2}]
  index_cache: /jobs/data/maps
  tokenizer: {kind: gpt2, vocab: /jobs/data/vocab.json, merges: /jobsite/merges.txt}
checkpoint: {load: /jobs/gpt2}
"""


def test_paths_below_jobs_are_in_the_hosts_job_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt.yaml").write_text(CONFIG)
    config = configuration.load(tmp_path / "gpt.yaml", [])
    moved = data_paths.here(config, Path("/home/me/jobs"))
    assert (moved.checkpoint.load, moved.checkpoint.init_from) == ("/home/me/jobs/gpt2", None)
    found = moved.data
    assert [blend.prefix for blend in found.blend] == ["/home/me/jobs/data/tokens", "/srv/tokens"]
    assert found.index_cache == "/home/me/jobs/data/maps"
    assert found.tokenizer is not None
    assert (found.tokenizer.vocab, found.tokenizer.merges) == (
        "/home/me/jobs/data/vocab.json",
        "/jobsite/merges.txt",
    )
    assert data_paths.here(config, JOBS) == config
    monkeypatch.setattr(data_paths, "JOBS", tmp_path)
    assert data_paths.here(config, Path("/home/me/jobs")) == config, "the host has such a directory"


def test_missing_data_is_named_by_its_path_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    problems = check(Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),), config=CONFIG))["problems"]
    assert any(f"{tmp_path}/data/tokens.bin" in problem for problem in problems), problems
