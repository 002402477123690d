"""Templates are compiled once for all processes of a run, and their results do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible import constants
from ansible._internal._datatag._tags import Origin, SourceWasEncrypted, VaultedValue
from ansible._internal._templating._jinja_bits import AnsibleEnvironment
from ansible.errors import AnsibleError
from ansible.module_utils._internal._datatag import AnsibleDatatagBase, AnsibleTagHelper
from ansible.template import Templar, trust_as_template
from ansible_collections.rdm.provision.plugins.callback import template_cache
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals import compiled_templates
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.compiled_templates import (
    Store,
    install,
)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """Return what makes this process a new one of the run, with the list of what it compiles."""
    methods = {
        name: getattr(AnsibleEnvironment, name) for name in ("compile", "compile_expression", "_compile")
    }

    def another() -> list[str]:
        compiled: list[str] = []

        def noting(self: Any, source: str, filename: str) -> Any:
            compiled.append(source)
            return methods["_compile"](self, source, filename)

        for name, method in methods.items():
            monkeypatch.setattr(AnsibleEnvironment, name, method)
        install(Store(tmp_path))
        monkeypatch.setattr(AnsibleEnvironment, "_compile", noting)
        return compiled

    return another


HERE = Origin(path=__file__)


def written(text: str) -> Any:
    """Return a template as Ansible has it from a file."""
    return trust_as_template(HERE.tag(text))


def template(text: str, escape_backslashes: bool = True, **variables: Any) -> Any:
    return Templar(variables=variables).template(written(text), escape_backslashes=escape_backslashes)


def holds(text: str, **variables: Any) -> Any:
    return Templar(variables=variables).evaluate_expression(written(text))


def test_another_process_compiles_nothing_again(process: Callable[[], list[str]]) -> None:
    first = process()
    assert template("{{ one | default('none') }}-{{ two }}", one=1, two="a") == "1-a"
    assert holds("one in [2, 3]", one=2) is True
    assert len(first) == 2
    second = process()
    assert template("{{ one | default('none') }}-{{ two }}", two="b") == "none-b"
    assert holds("one in [2, 3]", one=4) is False
    assert second == []


def test_values_keep_their_types(process: Callable[[], list[str]]) -> None:
    for _ in range(2):
        process()
        assert template("{{ [number, {'a': none}] }}", number=3) == [3, {"a": None}]
        assert template("{{ inner }}", inner=written("{{ 1 + 1 }}")) == 2


def test_a_condition_is_not_the_template_of_the_same_text(process: Callable[[], list[str]]) -> None:
    process()
    text = "one ~ '{# nothing #}'"
    for _ in range(2):
        assert template("{{ two }}" + text, two=2) == "2one ~ ''"
        assert holds(text, one=1) == "1{# nothing #}"
        assert template(text + "{{ two }}", two=2) == "one ~ ''2"


def test_backslashes_are_distinguished(process: Callable[[], list[str]]) -> None:
    text = r"{{ 'a\nb' }}"
    plain, escaped = "a\nb", r"a\nb"
    for _ in range(2):
        process()
        assert template(text) == escaped
        assert template(text, escape_backslashes=False) == plain


def test_other_delimiters_are_distinguished(process: Callable[[], list[str]]) -> None:
    text = "{{ one }} [[ one ]]"
    for _ in range(2):
        process()
        assert template(text, one=1) == "1 [[ one ]]"
        header = "#jinja2: variable_start_string:'[[', variable_end_string:']]'\n"
        assert template(header + text, one=1) == "{{ one }} 1"


def test_error_of_an_invalid_template_is_ansibles(process: Callable[[], list[str]]) -> None:
    messages = []
    for _ in range(2):
        process()
        with pytest.raises(AnsibleError) as error:
            template("{{ one +- }}", one=1)
        with pytest.raises(AnsibleError) as condition:
            holds("one ==", one=1)
        messages.append((str(error.value), str(condition.value)))
    assert messages[0] == messages[1]
    assert "yntax error" in messages[0][0]


def test_damaged_cached_code_is_recreated(process: Callable[[], list[str]], tmp_path: Path) -> None:
    process()
    assert template("{{ one }}", one=1) == 1
    (kept,) = tmp_path.iterdir()
    for damage in (b"", kept.read_bytes()[:20]):
        kept.write_bytes(damage)
        compiled = process()
        assert template("{{ one }}", one=2) == 2
        assert len(compiled) == 1


def test_missing_cache_directory_is_no_error(process: Callable[[], list[str]], tmp_path: Path) -> None:
    process()
    tmp_path.rmdir()
    assert template("{{ one }}", one=1) == 1


@pytest.mark.parametrize(
    "tags",
    [
        [],
        [Origin(description="from a plugin")],
        [Origin(path="/not/there")],
        [HERE, SourceWasEncrypted()],
        [HERE, VaultedValue(ciphertext="6162")],
    ],
)
def test_templates_that_may_be_secret_are_not_cached(
    process: Callable[[], list[str]], tmp_path: Path, tags: list[AnsibleDatatagBase]
) -> None:
    """What a file has that is encrypted as a whole: see the callback's test."""

    def tagged(text: str) -> Any:
        return trust_as_template(AnsibleTagHelper.tag(text, tags))

    compiled = process()
    assert Templar(variables={"one": 1}).template(tagged("secret {{ one }}")) == "secret 1"
    assert Templar(variables={"one": 1}).evaluate_expression(tagged("'secret' ~ one")) == "secret1"
    assert len(compiled) == 2
    assert list(tmp_path.iterdir()) == []


def broken(environment: pytest.MonkeyPatch, name: str) -> None:
    """Remove what another ansible-core does not have."""
    if name == "_TEMPLATE_OVERRIDE_FIELD_NAMES":
        environment.setattr(compiled_templates, name, ("another_string",))
    elif name == "_TemplateCompileContext":
        environment.setattr(compiled_templates, name, lambda: None)
    else:
        environment.delattr(AnsibleEnvironment, name)


@pytest.mark.parametrize(
    "name", ["_debuggable_template_source", "_TEMPLATE_OVERRIDE_FIELD_NAMES", "_TemplateCompileContext"]
)
def test_ansible_without_the_private_parts_compiles_without_a_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    methods = [AnsibleEnvironment.compile, AnsibleEnvironment.compile_expression]
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(tmp_path))
    with monkeypatch.context() as other:
        broken(other, name)
        template_cache.CallbackModule().v2_playbook_on_start(None)
    assert [AnsibleEnvironment.compile, AnsibleEnvironment.compile_expression] == methods
