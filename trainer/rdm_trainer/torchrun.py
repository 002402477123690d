# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m rdm_trainer.torchrun``: torch's launcher, with sentences for its own errors."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch.distributed import DistNetworkError, run
from torch.distributed.elastic.multiprocessing import SignalException

from rdm_core.errors import FAILED
from rdm_trainer.process import taken_port


def main(argv: Sequence[str]) -> int:
    """Run torch's launcher.

    Returns:
        The exit code, after a signal that of shells.
    """
    try:
        run.main(argv)
    except SignalException as error:
        print(f"torchrun was ended by {error.sigval.name}, and has ended its processes.", file=sys.stderr)
        return 128 + error.sigval
    except DistNetworkError as error:
        port = taken_port(error)
        if port is None:
            raise
        hint = "choose another launcher.master_port, or leave it out to take a free one"
        print(f"Port {port} is in use on this host, perhaps by another job; {hint}.", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
