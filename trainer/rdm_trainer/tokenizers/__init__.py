# SPDX-License-Identifier: GPL-3.0-or-later
"""Text to tokens and back, and the ids of special tokens. No torch here."""
