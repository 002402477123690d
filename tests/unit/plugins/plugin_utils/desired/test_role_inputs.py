"""A digest differs exactly when something differs that a role's work depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.role_inputs import RoleInputs, code_digest

OPTIONS = {"container": ["container_env", "container_network"], "network": ["network_name"]}
DEFAULTS = {
    "container_env": {},
    "container_network": "{{ network_name | default('ibnet') }}",
    "network_name": "ibnet",
    "container_image": "{{ preflight_plan.nodes[inventory_hostname].image }}",
}


@pytest.fixture
def inputs(tmp_path: Path) -> RoleInputs:
    (tmp_path / "main.yml").write_text("---\n", encoding="utf-8")
    return RoleInputs([tmp_path], OPTIONS, DEFAULTS)


def digest(inputs: RoleInputs, role: str = "container", more: Any = None, **variables: Any) -> str:
    return inputs.digest(role, variables, more)


def test_the_same_is_the_same(inputs: RoleInputs) -> None:
    assert digest(inputs, container_env={"A": "1", "B": "2"}) == digest(
        inputs, container_env={"B": "2", "A": "1"}
    )


def test_code_variables_and_the_rest_are_told_apart(inputs: RoleInputs, tmp_path: Path) -> None:
    def differs(one: str, other: str) -> list[bool]:
        return [a != b for a, b in zip(one.split("-"), other.split("-"), strict=True)]

    before = digest(inputs)
    assert differs(before, digest(inputs, network_name="mine")) == [False, True, False]
    assert differs(before, digest(inputs, more=["10.0.0.1"])) == [False, False, True]
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.yml").write_text("--- # another\n", encoding="utf-8")
    assert differs(before, digest(RoleInputs([code], OPTIONS, DEFAULTS))) == [True, False, False]


@pytest.mark.parametrize(
    "variables",
    [
        {"container_env": {"A": "1"}},
        {"container_env": None},
        {"rdm_become": False},
        {"rdm_cluster": "other"},
        {"network_name": "mine"},  # by way of the default of container_network
    ],
)
def test_a_variable_of_the_role_or_one_that_its_defaults_read_counts(
    inputs: RoleInputs, variables: dict[str, Any]
) -> None:
    assert digest(inputs, **variables) != digest(inputs)


def test_other_roles_variables_and_those_of_the_connection_do_not_count(inputs: RoleInputs) -> None:
    others = {"container_env": {"A": "1"}, "ansible_user": "somebody", "their_own": 3}
    assert inputs.digest("network", others, None) == inputs.digest("network", {}, None)


def test_what_a_template_refers_to_counts_however_far(inputs: RoleInputs) -> None:
    chain: dict[str, Any] = {"container_env": {"A": "{{ first }}"}, "first": ["{{ second }}"], "second": "x"}
    assert digest(inputs, **chain) != digest(inputs, **chain | {"second": "y"})
    assert digest(inputs, **chain) == digest(inputs, **chain | {"third": "y"})


@pytest.mark.parametrize(
    "template",
    [
        "{{ lookup('env', 'HOME') }}",
        "{{ query('file', 'x') }}",
        "{{ now() }}",
        "{{ hostvars['other'].x }}",
        "{{ ansible_facts.x }}",
        "{{ not_set_anywhere }}",
        "{{ 10 | random }}",
        "{{ 'x' is file }}",
        "{{ 'x' is ansible.builtin.exists }}",
        "{{ ('/x/*' | fileglob) if flag else [] }}",
        "{% if flag %}{{ '%Y' | strftime }}{% endif %}",
        "{% include 'x' %}",
        "{{ 'x' | password_hash }}",
        "{{ 1 | somebody.elses.filter }}",
        "{{ broken",
    ],
)
def test_what_cannot_be_known_beforehand_has_no_digest(inputs: RoleInputs, template: str) -> None:
    assert digest(inputs, container_env={"A": template}, flag=True) == ""
    assert digest(inputs, container_env={"A": "{{ mine }}"}, mine=template, flag=True) == ""
    assert digest(inputs, "network", container_env={"A": template}) != ""


@pytest.mark.parametrize(
    "template",
    [
        "{{ base | combine({'B': '1'}) }}",
        "{{ (flag | bool) | ternary('a', 'b') }}",
        "{{ base | ansible.builtin.to_json }}",
        "{% for one in base %}{{ one }}{{ loop.index }}{% endfor %}",
        "{% set mine = base %}{{ mine | default({}, true) }}",
        "{{ 'x' if flag is defined and 'abc' is match('a') else 'y' }}",
    ],
)
def test_what_gives_the_same_for_the_same_has_a_digest(inputs: RoleInputs, template: str) -> None:
    def made(**variables: Any) -> str:
        return digest(inputs, container_env=template, **variables)

    assert made(base={"A": "1"}, flag="yes") == made(base={"A": "1"}, flag="yes") != ""
    assert made(base={"A": "1"}, flag="yes") != made(base={"A": "2"}, flag="no")


def test_variables_that_refer_to_each_other_end(inputs: RoleInputs) -> None:
    assert digest(inputs, container_env={"A": "{{ b }}"}, b="{{ c }}", c="{{ b }}") != ""


def test_what_the_plan_says_counts(inputs: RoleInputs) -> None:
    assert digest(inputs, more=["192.169.16.100"]) != digest(inputs, more=["192.169.16.101"])


def test_another_version_of_the_collection_is_another_input(tmp_path: Path) -> None:
    file = tmp_path / "tasks" / "main.yml"
    file.parent.mkdir()
    seen = set()
    for text in ("a", "b"):
        file.write_text(text, encoding="utf-8")
        code_digest.cache_clear()
        seen.add(digest(RoleInputs([tmp_path], OPTIONS, DEFAULTS)))
    file.rename(file.with_name("other.yml"))
    code_digest.cache_clear()
    seen.add(digest(RoleInputs([tmp_path], OPTIONS, DEFAULTS)))
    assert len(seen) == 3


@pytest.mark.parametrize(
    "name",
    [
        "modules/__pycache__/a.cpython-311.pyc.140234",  # Python's own, for a moment
        "a.pyc",
        "modules/.a.py.swp",
        "README.md",
        "doc_fragments/files.py",
        "module_utils/lab/recipe.py",
        "modules/lab_images.py",
    ],
)
def test_what_is_no_code_for_a_node_does_not_count(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.py").write_text("", encoding="utf-8")
    before = code_digest((tmp_path,))
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("1", encoding="utf-8")
    code_digest.cache_clear()
    assert code_digest((tmp_path,)) == before


def test_a_modules_documentation_does_not_count_and_its_code_does(tmp_path: Path) -> None:
    module = '''DOCUMENTATION = r"""
module: a
"""

RETURN = r"""
"""

TEXT = """
module: a
"""
'''

    def made(text: str) -> str:
        (tmp_path / "a.py").write_text(text, encoding="utf-8")
        code_digest.cache_clear()
        return code_digest((tmp_path,))

    assert made(module) == made(module.replace("module: a", "module: b", 1))
    assert made(module) != made(module.replace("module: a", "module: b"))


def test_a_secret_counts_as_it_is_written(inputs: RoleInputs) -> None:
    class Secret:
        def __init__(self, ciphertext: str) -> None:
            self._ciphertext = ciphertext

        def __str__(self) -> str:
            raise AssertionError("it was decrypted")

    assert digest(inputs, container_env={"A": Secret("x")}) != digest(
        inputs, container_env={"A": Secret("y")}
    )


def test_keys_without_an_order_have_no_digest(inputs: RoleInputs) -> None:
    assert digest(inputs, container_env={1: "a", "b": "c"}) == ""
