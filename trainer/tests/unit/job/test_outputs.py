# SPDX-License-Identifier: GPL-3.0-or-later
"""The mdx scripts' names for a job's outputs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_job.directory import JobDirectory
from rdm_job.outputs import link, name_of
from rdm_job.protocol import Node, Request

MDX = Path(__file__).parents[3] / "configs" / "gpt-1.3b.yaml"


@pytest.mark.parametrize(
    ("launcher", "name"),
    [
        ("deepspeed", "gpt_1.3B_token300B_lr2.0e-4_gbs512_mbs2_gpu16_zero1_tp2_pp2"),
        (
            "mpirun",
            "gpt_1.3B_tok300B_lr2.0e-4_min1.0e-6_w3000M_d300B_cosine_gbs512_mbs2_g16_z1_mp2_pp2_seed1234_rebase",
        ),
    ],
)
def test_the_document_s_job_has_the_document_s_name(launcher: str, name: str) -> None:
    config = configuration.load(MDX, [f"launcher.kind={launcher}"])
    assert name_of(config.resolved(16), 16) == name


def test_links_lead_into_the_job_wherever_its_directory_is_mounted(tmp_path: Path) -> None:
    config = configuration.load(MDX, ["logging.names=mdx"]).resolved(16)
    name = name_of(config, 16)
    for number in (1, 2):  # the newer one of the same training has the checkpoint's name
        job = JobDirectory(tmp_path / "here" / f"job-{number}", "n1")
        job.make(Request(f"job-{number}", "n1", (Node("n1", "10.0.0.1", 16),)))
        (job.path / "checkpoints").mkdir()
        job.log("n1", "out").write_text(f"of job {number}\n")
        link(job, config, 16, 1690000000.0 + number)
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    outputs = tmp_path / "elsewhere" / "outputs"
    assert (outputs / "checkpoint" / name).resolve() == tmp_path / "elsewhere" / "job-2" / "checkpoints"
    stamp = time.strftime("%Y.%m.%d_%H.%M.%S", time.localtime(1690000001.0))
    log = outputs / "log" / f"{name}_{os.uname().nodename}_{stamp}.log"
    assert log.read_text() == "of job 1\n"
    assert len(list((outputs / "log").iterdir())) == 4
