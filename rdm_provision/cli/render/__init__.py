# SPDX-License-Identifier: GPL-3.0-or-later
"""How things look in a terminal."""
