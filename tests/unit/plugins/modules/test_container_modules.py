"""What the modules around containers document is what they take."""

from __future__ import annotations

from types import ModuleType

import pytest
from ansible_collections.rdm.provision.plugins.modules import container, container_ready, docker_owned

from tests.unit.plugins.modules.running import documented_options


@pytest.mark.parametrize("module", [container, container_ready, docker_owned])
def test_the_documentation_says_what_the_module_takes(module: ModuleType) -> None:
    assert documented_options(module.DOCUMENTATION) == documented_options(module.ARGUMENT_SPEC)
