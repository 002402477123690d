# SPDX-License-Identifier: GPL-3.0-or-later
"""How a model is spread over ranks: topology, tensor-parallel layers, the loss, initialisation, pipeline."""
