"""What roles and the trainer have to write again is what everybody else imports."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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


def test_the_trainer_has_the_same_launchers_and_final_states() -> None:
    schema = ROOT / "trainer" / "rdm_core" / "config" / "job.py"
    kinds = re.findall(r"^    kind: Literal\[([^\]]*)\]", schema.read_text(encoding="utf-8"), re.MULTILINE)
    assert constants.LAUNCHERS in [ast.literal_eval(f"({one})") for one in kinds]
    for file, name in (("rdm_job/protocol.py", "FINAL"), ("rdm_log/observe.py", "ENDED")):
        assert assigned(ROOT / "trainer" / file, name) == constants.FINAL_STATES


def test_both_programs_keep_the_same_from_terminals() -> None:
    """Neither imports the other."""
    one, other = (ROOT / path / "printable.py" for path in ("rdm_provision/cli/render", "trainer/rdm_log"))
    assert one.read_text(encoding="utf-8") == other.read_text(encoding="utf-8")


def literals(path: Path) -> Iterator[object]:
    """Yield the texts, and tuples of texts, that a program writes out, but docstrings and parts of texts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = {one.value for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    parts |= {part for one in ast.walk(tree) if isinstance(one, ast.JoinedStr) for part in one.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node not in parts:
            yield node.value
        elif isinstance(node, ast.Tuple | ast.List) and all(
            isinstance(one, ast.Constant) for one in node.elts
        ):
            yield tuple(one.value for one in node.elts if isinstance(one, ast.Constant))


def test_shared_constants_are_not_repeated() -> None:
    # Short words mean other things, too.
    own = {name: value for name, value in vars(constants).items() if name.isupper()}
    wanted = {value for value in own.values() if not isinstance(value, str) or len(value) > 9 or "/" in value}
    assert {constants.LABEL_CLUSTER, constants.CONFIG_DIR, constants.LAUNCHERS} <= wanted
    found = {
        f"{path.relative_to(ROOT)}: {one}"
        for folder in ("plugins", "rdm_provision")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / "plugins/module_utils/constants.py"
        for one in literals(path)
        if one in wanted
    }
    assert found == set()
