# SPDX-License-Identifier: GPL-3.0-or-later
"""Plants faults in the ranks of a job: Python runs this first if it is on PYTHONPATH.

Files in ``$PLANTED`` choose the faults. ``slow.1`` contains the seconds that rank 1 sleeps in each step,
``nan.1`` makes its loss NaN, ``grow.1`` contains the bytes up to which it allocates 64 MiB more in each step,
and ``pause`` contains the seconds that the tests' machine rests after each step.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

# A launcher has the same environment, and the same module later in its arguments.
is_rank = "-m" in sys.orig_argv and sys.orig_argv[sys.orig_argv.index("-m") + 1] == "rdm_job.rank"

if "PLANTED" in os.environ and is_rank:
    from rdm_job.environment import adopt_launcher_environment
    from rdm_trainer import compute_time
    from rdm_trainer.engines.deepspeed.engine import DeepSpeedEngine

    adopt_launcher_environment(os.environ)
    folder, rank = Path(os.environ["PLANTED"]), os.environ["RANK"]
    job, attempt = os.environ["RDM_JOB_ID"].partition("@")[0], os.environ["RDM_ATTEMPT"]
    (folder / f"{job}.{rank}.{attempt}").touch()
    made, step = DeepSpeedEngine.__init__, DeepSpeedEngine.train_step
    taken: list[bytes] = []
    MIB64 = 64 * 1024**2

    def planted(name: str) -> float:
        with contextlib.suppress(OSError):
            return float((folder / name).read_text() or 1)
        return 0.0

    def init(self: DeepSpeedEngine, *args: Any, on_loss: Any, **more: Any) -> None:
        def report_loss(loss: Any) -> None:
            on_loss(loss * float("nan") if planted(f"nan.{rank}") else loss)

        made(self, *args, on_loss=report_loss, **more)
        # In the forward pass, as a slow kernel: before and after it, a rank waits for others.
        self.module.register_forward_pre_hook(lambda *_: time.sleep(planted(f"slow.{rank}")))

    def train_step(self: DeepSpeedEngine, batches: Any) -> Any:
        if len(taken) * MIB64 < planted(f"grow.{rank}"):
            taken.append(b"\1" * MIB64)
        result = step(self, batches)
        with compute_time.waiting():
            time.sleep(planted("pause"))
        return result

    setattr(DeepSpeedEngine, "__init__", init)  # noqa: B010
    setattr(DeepSpeedEngine, "train_step", train_step)  # noqa: B010
