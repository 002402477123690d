# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python API: a cluster, its jobs, and labs."""
