# SPDX-License-Identifier: GPL-3.0-or-later
"""Running playbooks with ansible-runner: nothing else knows its dictionaries."""
