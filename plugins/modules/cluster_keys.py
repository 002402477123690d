# SPDX-License-Identifier: GPL-3.0-or-later
"""Documentation and options of `rdm.provision.cluster_keys`, an action that runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_keys
short_description: Make the ssh keys of a cluster on the controller
description:
  - Makes the key with which the containers log in to each other (C(id_ed25519)) and the one that signs their
    host keys (C(host_ca)), where they are missing. Everything else is derived from these two.
  - For the role C(container) where it is used without C(preflight), whose plan makes them and keeps their
    fingerprints. Run it once.
version_added: 0.2.0
extends_documentation_fragment: rdm.provision.attributes.no_diff
attributes:
  diff_mode:
    support: none
    description: There is nothing to show but secrets.
options:
  directory:
    description:
      - Where the keys are on the controller; a relative path begins at the inventory's directory. It becomes
        readable by its owner alone.
    type: str
    required: true
  cluster:
    description: Name of the cluster, for the comments in the keys.
    type: str
    required: true
"""

RETURN = r"""
{}
"""
