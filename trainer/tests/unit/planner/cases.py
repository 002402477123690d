# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's cases for the reference implementation."""

from rdm_planner.fasop.shapes import SHAPES, measured_seconds
from tests.unit.planner import fasop_reference as reference

PROFILES: reference.Profiles = {
    (name, gpu, tensor): measured_seconds(shape, gpu, tensor)
    for name, shape in SHAPES.items()
    for gpu in ("A10", "A100")
    for tensor in (1, 2, 4)
}
MODELS = {model.name: model for model in (reference.GPT2_XL, reference.BERT, reference.T5)}
NODES = {"A10": reference.A10, "A100": reference.A100}
