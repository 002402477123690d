# SPDX-License-Identifier: GPL-3.0-or-later
"""What takes the steps of a training: :class:`rdm_trainer.engines.engine.Engine`, and who implements it."""
