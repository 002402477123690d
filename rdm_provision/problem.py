"""What is wrong, as users are shown it: see ``plugins/plugin_utils/errors/precondition.py``."""

from rdm_provision.environment import make_importable

make_importable()

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem  # noqa: E402

__all__ = ["Problem"]
