# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of layers, cut into pipeline stages."""
