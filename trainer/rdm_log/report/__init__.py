# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTML page of what jobs wrote, that opens without a network; see docs/report.md.

``job`` reads files, ``plots`` decides what is drawn, ``page`` puts it into one file. Beside Python's standard
library it needs PyYAML, for the configurations of our own jobs.
"""
