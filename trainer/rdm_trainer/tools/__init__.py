# SPDX-License-Identifier: GPL-3.0-or-later
"""What prepares data before a training, each behind a verb of the command line. No torch here."""
