# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m rdm_trainer`` is ``rdm-trainer``: what launchers start, wherever the script is not on PATH."""

from __future__ import annotations

from rdm_trainer.cli import main

if __name__ == "__main__":
    main()
