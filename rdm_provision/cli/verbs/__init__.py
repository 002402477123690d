# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs of the command line, one file each: options in, a recap out."""
