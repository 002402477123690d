"""Former variables: renamed ones are read and never override the new ones; both kinds get a notice."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.renamed_variables import (
    FORMER,
    NEW_NAMES,
    notices,
    with_new_names,
)


def test_each_new_name_is_a_roles_and_no_former_variable_is() -> None:
    known = role_specs.options()
    assert set(NEW_NAMES.values()) <= set(known)
    assert not FORMER & set(known)


def test_a_former_name_means_the_new_one() -> None:
    assert with_new_names({"verify_patience": 7})["verify_timeout"] == 7
    assert with_new_names({"verify_patience": 7, "verify_timeout": 8})["verify_timeout"] == 8
    plain = {"verify_deadline": 7}
    assert with_new_names(plain) is plain


def test_a_former_name_is_reported_with_the_new_one() -> None:
    assert notices(["verify_patience", "verify_deadline"]) == [
        "The variable verify_patience is called verify_timeout now: rename it, the next release does not "
        "know it."
    ]


def test_a_removed_variable_gets_a_notice() -> None:
    assert notices(["sriov_install_wrapper", "sriov_enabled"]) == [
        "The variable sriov_install_wrapper has no effect any more, since nothing here needs the command "
        "docker_rdma_sriov: delete it."
    ]
