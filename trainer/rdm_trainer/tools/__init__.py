# SPDX-License-Identifier: GPL-3.0-or-later
"""Tools around a training: fetch, prepare and inspect data, and measure links. Only the last needs torch."""
