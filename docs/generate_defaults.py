"""Write each role's defaults/main.yml from its argument_specs, the only source of defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from rdm_provision import environment

FOLDED = 120  # characters
ROOT = Path(__file__).resolve().parent.parent


class Dumper(yaml.SafeDumper):
    """Writes text in double quotes if it needs quotes, and folds long text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Indent the items of a list."""
        super().increase_indent(flow, False)


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Return the node of a text."""
    plain = text and "{{" not in text and yaml.safe_load(text) == text
    style = ">" if len(text) > FOLDED else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


Dumper.add_representer(str, represent_text)


def reading_former(former: str, default: Any) -> str:
    """Return a default that reads the variable's former name first."""
    template = isinstance(default, str) and "{{" in default
    otherwise = default.strip(" {}\n") if template else json.dumps(default).replace('"', "'")
    return f"{{{{ {former} | default({otherwise}) }}}}"


def defaults(role: Path) -> str:
    """Return the text of a role's defaults/main.yml."""
    environment.make_importable()
    from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import NEW_NAMES

    former = {new: old for old, new in NEW_NAMES.items()}
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text(encoding="utf-8"))
    values = {
        name: reading_former(former[name], option["default"]) if name in former else option["default"]
        for name, option in specs["argument_specs"]["main"].get("options", {}).items()
        if "default" in option
    }
    return "---\n" + yaml.dump(values, Dumper=Dumper, sort_keys=False, width=FOLDED, allow_unicode=True)


if __name__ == "__main__":
    for path in sorted((ROOT / "roles").glob("*/defaults/main.yml")):
        path.write_text(defaults(path.parents[1]), encoding="utf-8")
