# SPDX-License-Identifier: GPL-3.0-or-later
"""What runs and jobs came to, as small frozen records that turn into JSON."""
