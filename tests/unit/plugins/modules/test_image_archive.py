"""The module that loads image archives; tests/integration covers it with an engine."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.modules import image_archive

from tests.unit.plugins.modules.running import documented_options


def test_the_documentation_says_what_the_module_takes() -> None:
    assert documented_options(image_archive.DOCUMENTATION) == documented_options(image_archive.ARGUMENT_SPEC)
