"""Write docs/variables.md from the roles' argument_specs: one table per role, in the order of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
ORDER = (
    "preflight",
    "docker_engine",
    "python_env",
    "images",
    "sriov",
    "network",
    "my_ip",
    "container",
    "hostfile",
    "ssh_config",
    "pdsh",
    "openmpi",
    "verify",
    "job",
    "slurm",
    "lab",
)
HEAD = """# Variables

Every variable of every role, written by `make docs` from the roles' `meta/argument_specs.yml`.
Set them in the inventory: for the whole cluster under `all: vars:`, for one node beside its name.
The variables that start with `rdm_`, and `my_ip`, belong to the cluster and are listed under *preflight*.
"""


def sentence(description: str | list[str]) -> str:
    """Return a description as one table cell."""
    text = description if isinstance(description, str) else " ".join(description)
    return " ".join(text.split()).replace("|", "\\|")


def default(option: dict[str, Any]) -> str:
    """Return an option's default as one table cell."""
    if "default" not in option:
        return "required" if option.get("required") else ""
    value = option["default"]
    shown = (
        value if isinstance(value, str) and value else yaml.safe_dump(value, default_flow_style=True).strip()
    )
    return f"`{' '.join(shown.removesuffix('...').split())}`".replace("|", "\\|")


def kind(option: dict[str, Any]) -> str:
    """Return the values that an option takes."""
    if "choices" in option:
        return ", ".join(f"`{choice}`" for choice in option["choices"])
    return f"{option['type']} of {option['elements']}" if "elements" in option else str(option["type"])


def rows(options: dict[str, dict[str, Any]], prefix: str = "") -> list[str]:
    """Return table rows of the options and, below each, of its suboptions."""
    lines = []
    for name, option in options.items():
        lines.append(
            f"| `{prefix}{name}` | {kind(option)} | {default(option)} | {sentence(option['description'])} |"
        )
        lines += rows(option.get("options", {}), f"{prefix}{name}.")
    return lines


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for role in ORDER:
        path = ROOT / "roles" / role / "meta" / "argument_specs.yml"
        specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        options = {name: option for spec in specs.values() for name, option in spec["options"].items()}
        parts.append(f"## {role}\n\n{sentence(specs['main']['short_description'])}\n")
        parts.append(
            "\n".join(["| variable | type | default | meaning |", "|---|---|---|---|", *rows(options)]) + "\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "variables.md").write_text(page(), encoding="utf-8")
