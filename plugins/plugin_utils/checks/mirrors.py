# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the registry mirrors that a node's engine should use."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NO_ENGINE, Engine
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.docker.registry_hosts import FOREIGN, unsupported
from ansible_collections.rdm.provision.plugins.module_utils.docker.registry_mirrors import is_mirror, split
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import (
    DOCKER_HUB,
    registry_of,
)

_FORM = (
    "write http(s)://host[:port], without a path, such as http://cache.example.com:5000, or for another "
    "registry REGISTRY=http(s)://host[:port][/path]"
)


def mirrors(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report each registry mirror that the engine cannot use, or would use for none of the images."""
    images = want.parts.get("images")
    if not images or not images.mirrors:
        return
    docker = facts["docker"] or NO_ENGINE
    if docker["engine"] == "podman":
        reason = "is for Docker Engine, and the node has Podman"
        hint = "leave it out, and name the mirror in /etc/containers/registries.conf"
        findings.refuse(want.node, "images_mirror", reason, hint)
        return
    unreachable = facts["unreachable_mirrors"]
    for one in images.mirrors:
        value = f"images_mirror {one}"
        if not is_mirror(one):
            findings.refuse(want.node, value, "is not the URL of a mirror", _FORM)
        elif one in unreachable:
            hint = "start it, correct its URL, or leave it out"
            findings.refuse(want.node, value, unreachable[one], hint)
    found = [one for one in images.mirrors if is_mirror(one)]
    named = [one for one in found if split(one)[0]]
    of = {split(one)[0] or DOCKER_HUB for one in found}
    why = _unsupported(docker)
    if named:
        _of_named_registries(want, named, why, facts, findings)
    if DOCKER_HUB in {split(one)[0] for one in named} and len(named) < len(found):
        reason = f"names mirrors with {DOCKER_HUB}= and without it, and the engine would ignore the latter"
        findings.refuse(want.node, "images_mirror", reason, "name all of them in one way")
    pulled = [str(image["name"]) for image in images.images if image["source"] == "registry"]
    if pulled and found and not of & {registry_of(name) for name in pulled}:
        hint = "name the mirror in the image's name instead" if why else "name one as REGISTRY=URL"
        findings.warn(
            want.node,
            f"images_mirror is of no use here: it has mirrors of {names(sorted(of))} only, and "
            f"{names(pulled)} is from elsewhere; {hint}",
        )


def _unsupported(docker: Engine) -> str:
    """Return why the node's engine has no mirrors of named registries; "" if it has, or is not there yet."""
    if not docker["engine"]:
        return ""
    return unsupported(docker["version"], docker["image_store"], docker["security_options"])


def _of_named_registries(
    want: DesiredState, named: Sequence[str], why: str, facts: ObservedState, findings: Findings
) -> None:
    """Report why an engine cannot have mirrors of named registries."""
    if why:
        others = any(split(one)[0] != DOCKER_HUB for one in named)
        hint = "write the mirror into the image's name" if others else f"leave {DOCKER_HUB}= and a path out"
        findings.refuse(want.node, f"images_mirror {names(named)}", why, hint)
        return
    for registry, path in facts["foreign_mirror_files"].items():
        reason = f"{FOREIGN}, and images_mirror names mirrors of {registry}"
        hint = "name them in that file, or remove it"
        findings.refuse(want.node, str(path), reason, hint)
