# SPDX-License-Identifier: GPL-3.0-or-later
"""Author and attributes that many modules share."""

from __future__ import annotations


class ModuleDocFragment:
    """Fragments for C(extends_documentation_fragment)."""

    # A module that only reads or decides.
    READS = r"""
author: The rdm-provision developers
attributes:
  check_mode:
    support: full
    description: It changes nothing.
  diff_mode:
    support: none
    description: It changes nothing.
  idempotent:
    support: full
    description: It changes nothing.
"""

    # A module that changes what differs.
    CHANGES = r"""
author: The rdm-provision developers
attributes:
  check_mode:
    support: full
    description: Reports what would change without changing it.
  diff_mode:
    support: full
    description: Shows what changes.
  idempotent:
    support: full
    description: A second run changes nothing.
"""

    # The same, but what changes is not shown.
    NO_DIFF = r"""
author: The rdm-provision developers
attributes:
  check_mode:
    support: full
    description: Reports what would change without changing it.
  diff_mode:
    support: none
    description: It shows no difference.
  idempotent:
    support: full
    description: A second run changes nothing.
"""
