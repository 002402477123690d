# SPDX-License-Identifier: GPL-3.0-or-later
"""The learning rate and the weight decay of each step."""
