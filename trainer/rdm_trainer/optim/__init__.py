# SPDX-License-Identifier: GPL-3.0-or-later
"""The learning rate of each step."""
