# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of runs and jobs, as small frozen records that turn into JSON."""
