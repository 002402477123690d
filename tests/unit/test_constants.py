"""What roles and the trainer have to write again is what everybody else imports."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils import constants

ROOT = Path(__file__).parents[2]
YAML = [path for part in ("roles", "playbooks") for path in (ROOT / part).rglob("*.yml")]


def assigned(path: Path, name: str) -> Any:
    """Return the literal that a module gives a name, without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", "") for one in node.targets] == [name]:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} gives {name} no value")


def test_roles_and_playbooks_take_the_same_defaults() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in YAML)
    names = re.findall(r"\brdm_cluster \| default\('([^']*)'\)", text)
    assert len(names) > 5
    assert set(names) == {constants.CLUSTER}
    places = re.findall(r"\('(/[^']*)' if rdm_become \| default\(true\) \| bool else '~/([^']*)'\)", text)
    assert len(places) > 5
    assert set(places) == {(constants.CONFIG_DIR, constants.USER_CONFIG_DIR)}
    labels = set(re.findall(r"\brdm\.provision\.(?:cluster|role)\b(?!_)", text))
    assert labels == {constants.LABEL_CLUSTER, constants.LABEL_ROLE}


def test_the_trainer_has_the_same_launchers_and_final_states() -> None:
    schema = ROOT / "trainer" / "rdm_trainer" / "config" / "schema.py"
    kinds = re.findall(r"^    kind: Literal\[([^\]]*)\]", schema.read_text(encoding="utf-8"), re.MULTILINE)
    assert constants.LAUNCHERS in [ast.literal_eval(f"({one})") for one in kinds]
    assert assigned(ROOT / "trainer" / "rdm_job" / "protocol.py", "FINAL") == constants.FINAL_STATES
