# SPDX-License-Identifier: GPL-3.0-or-later
"""Run playbooks with ansible-runner, whose dictionaries nothing else knows."""
