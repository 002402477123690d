# SPDX-License-Identifier: GPL-3.0-or-later
"""Text files to data sets, on all cores, resumable."""
