# SPDX-License-Identifier: GPL-3.0-or-later
"""Let uv choose the build of torch that fits a node's driver or GPU, and check that the nodes agree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env.lock import (
    Sources,
    find_uv,
    run_program,
)

AUTO = "auto"
_SET = "set python_env_torch_backend"
# Matches the index in uv's lock file, or in its error if the index is unreachable.
_INDEX = re.compile(r"https?://\S+/whl/(cpu|xpu|cu[0-9]+|rocm[0-9.]+)\b")


def variable_of(host: str, accelerator: str, found: Mapping[str, Any]) -> tuple[str, str]:
    """Return the environment variable that tells uv a node's driver or GPU, and its value.

    Args:
        host: the node.
        accelerator: of the node, `cuda`, `rocm` or `cpu`.
        found: what rdm.provision.gpu_driver returned.

    Raises:
        PreconditionFailed: the node has no driver or GPU to choose by.
    """
    if accelerator == "cuda":
        if found["nvidia"]:
            return "UV_CUDA_DRIVER_VERSION", str(found["nvidia"])
        reason, hint = "has no NVIDIA driver in use (/sys/module/nvidia/version)", f"load it, or {_SET}"
    else:
        if len(found["amd"]) == 1:
            return "UV_AMD_GPU_ARCHITECTURE", str(found["amd"][0])
        what = (
            f"has GPUs of several kinds ({', '.join(found['amd'])})" if found["amd"] else "shows no AMD GPU"
        )
        reason, hint = f"{what} in /sys/class/kfd", f"{_SET}, such as rocm6.4"
    raise PreconditionFailed([Problem(host, "it", reason, hint)])


def query_uv(variable: str, value: str, requirement: str, sources: Sources) -> str:
    """Return the backend that uv chooses for a driver or an architecture.

    Args:
        variable: the environment variable that variable_of() returned …
        value: … and its value.
        requirement: the requirement of torch.
        sources: where packages come from.

    Raises:
        PreconditionFailed: uv chooses none.
    """
    argv = [find_uv(), "pip", "compile", "--quiet", "--color", "never", "--no-deps", "--no-header", "-"]
    env = {
        "UV_NO_CONFIG": "1",
        "UV_HTTP_RETRIES": "0",
        **sources._replace(torch_backend=AUTO).variables(),
        variable: value,
    }
    argv.append("--emit-index-annotation")
    done = run_program(argv, "the build of torch", env=env, text=f"{requirement}\n")
    named = _INDEX.search(done.stdout) or _INDEX.search(done.stderr)
    if named is None:
        output = " ".join(done.stderr.split())[-300:]
        reason = f"names no build of torch for {variable}={value}: {output or 'it says nothing'}"
        raise PreconditionFailed([Problem(None, "uv", reason, f"{_SET}, such as cu128 or rocm6.4")])
    return named.group(1)


def agree(backends: Mapping[str, str], per_node: bool) -> list[Problem]:
    """Return a problem for each node that needs another build than most; none if `per_node`."""
    by_backend: dict[str, list[str]] = {}
    for host, backend in backends.items():
        by_backend.setdefault(backend, []).append(host)
    most = max(by_backend, key=lambda backend: len(by_backend[backend]), default="")
    hint = "give all nodes the same driver, set python_env_torch_backend, or python_env_per_node: true"
    return [
        Problem(
            host, f"torch for {backend}", f"fits its driver, and {most} that of {by_backend[most][0]}", hint
        )
        for backend, hosts in by_backend.items()
        if backend != most and not per_node
        for host in hosts
    ]
