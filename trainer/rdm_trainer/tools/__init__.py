# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools around a training: ``inspect`` for data sets, and ``all_reduce`` for links, which needs torch."""
