# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTML page about jobs, from their logs, which opens without a network; see docs/report.md.

``job`` reads files, ``plots`` decides what is drawn, ``page`` writes it into one file. The package needs
Python's standard library, and PyYAML for the configurations of our own jobs.
"""
