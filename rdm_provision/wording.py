"""Sizes and lists of names in messages: see ``plugins/module_utils/base/wording.py``."""

from rdm_provision.environment import make_importable

make_importable()

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import (  # noqa: E402
    names,
    size_text,
)

__all__ = ["names", "size_text"]
