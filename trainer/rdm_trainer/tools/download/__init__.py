# SPDX-License-Identifier: GPL-3.0-or-later
"""Public corpora and tokenizer files, fetched and verified by their digests."""
