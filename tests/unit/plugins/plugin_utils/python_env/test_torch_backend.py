"""The build of torch that uv chooses for a driver, and whether the nodes agree; without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    sentences,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env.lock import Sources, lock_file
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env.torch_backend import (
    agree,
    query_uv,
    variable_of,
)

# Nothing answers there, so no test downloads: uv's error names the index.
NOWHERE = Sources(proxy="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("accelerator", "found", "backend"),
    [
        ("cuda", {"nvidia": "520.61.05", "amd": []}, "cu118"),
        ("cuda", {"nvidia": "550.54.15", "amd": []}, "cu129"),
        ("rocm", {"nvidia": "", "amd": ["gfx942"]}, "rocm7.2"),
    ],
)
def test_uv_names_the_build_for_a_driver_or_an_architecture(
    accelerator: str, found: dict[str, Any], backend: str
) -> None:
    variable = variable_of("n1", accelerator, found)
    assert query_uv(*variable, "torch==2.13.0", NOWHERE) == backend


@pytest.mark.parametrize(
    ("accelerator", "found", "message"),
    [
        ("cuda", {"nvidia": "", "amd": []}, "n1: it has no NVIDIA driver in use"),
        ("rocm", {"nvidia": "", "amd": []}, "n1: it shows no AMD GPU in /sys/class/kfd"),
        ("rocm", {"nvidia": "", "amd": ["gfx90a", "gfx942"]}, "has GPUs of several kinds (gfx90a, gfx942)"),
    ],
)
def test_node_without_a_visible_gpu_is_refused(accelerator: str, found: dict[str, Any], message: str) -> None:
    with pytest.raises(PreconditionFailed) as caught:
        variable_of("n1", accelerator, found)
    assert message in sentences(caught.value.problems)[0]
    assert "set python_env_torch_backend" in sentences(caught.value.problems)[0]


def test_an_answer_without_a_build_is_refused_with_uv_s_words() -> None:
    with pytest.raises(
        PreconditionFailed, match=r"uv names no build of torch for UV_CUDA_DRIVER_VERSION=none"
    ):
        query_uv("UV_CUDA_DRIVER_VERSION", "none", "torch==2.13.0", NOWHERE)


def test_nodes_with_other_drivers_are_refused_unless_each_may_have_its_own() -> None:
    (problem,) = agree({"n1": "cu129", "n2": "cu129", "n3": "cu118"}, per_node=False)
    assert sentences([problem])[0].startswith(
        "n3: torch for cu118 fits its driver, and cu129 that of n1: give"
    )
    assert agree({"n1": "cu129", "n3": "cu118"}, per_node=True) == []
    assert lock_file("") == "python_env.lock"
    assert lock_file("cu118") == "python_env.cu118.lock"
