# SPDX-License-Identifier: GPL-3.0-or-later
"""Training engines: the interface :class:`rdm_trainer.engines.engine.Engine` and its implementations."""
