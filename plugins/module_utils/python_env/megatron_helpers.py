# SPDX-License-Identifier: GPL-3.0-or-later
"""Builds Megatron's helpers, its one compiled module, in a checkout with an environment's own Python.

Its Makefile uses the first ``python3-config`` on the PATH, which is often the wrong one. Here the
environment's Python reports its headers and the suffix of its modules.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Dict, List, NamedTuple, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.python_env.base_python import run_program

MARK = ".rdm-provision"
"""Suffix of a file next to a module that we built; it names the environment."""
# Before and after Megatron-LM's core.
SOURCES = ("megatron/data/helpers.cpp", "megatron/core/datasets/helpers.cpp")
# torch contains pybind11's headers.
_QUERY = """\
import importlib.util, json, os, sysconfig
found = [importlib.util.find_spec(name) for name in ("pybind11", "torch")]
print(json.dumps({
    "python": sysconfig.get_path("include"),
    "pybind11": [os.path.join(os.path.dirname(spec.origin), "include") for spec in found if spec],
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
}))
"""


class Build(NamedTuple):
    """What to compile.

    Attributes:
        source: the C++ file.
        target: the module next to it, with the suffix of the environment's Python.
        includes: directories with headers.
    """

    source: str
    target: str
    includes: List[str]

    def command(self, compiler: str, target: str) -> List[str]:
        """Return the compiler's command line."""
        includes = ["-I" + path for path in self.includes]
        return [compiler, "-O3", "-shared", "-std=c++17", "-fPIC", *includes, self.source, "-o", target]

    @property
    def is_built(self) -> bool:
        """Whether the module exists and is not older than its source."""
        if not os.path.exists(self.target):
            return False
        return os.path.getmtime(self.target) >= os.path.getmtime(self.source)


def plan(checkout: str, environment: str) -> Build:
    """Return what to build.

    Args:
        checkout: a directory with Megatron's sources.
        environment: the directory of the Python environment that will use it.

    Raises:
        NodeError: the checkout is not Megatron's, or there is no environment.
    """
    source = next(
        (path for path in (os.path.join(checkout, one) for one in SOURCES) if os.path.exists(path)), ""
    )
    if not source:
        raise NodeError(
            "{0} has neither {1}: give the directory of a Megatron's checkout".format(
                checkout, " nor ".join(SOURCES)
            )
        )
    python = os.path.join(environment, "bin", "python")
    if not os.access(python, os.X_OK):
        raise NodeError("there is no environment at {0} to build for".format(environment))
    output = json.loads(
        run_program([python, "-I", "-c", _QUERY], "say where its headers are", _environment())
    )
    if not output["pybind11"]:
        raise NodeError("{0} has neither pybind11 nor torch, which brings it".format(environment))
    target = source[: -len(".cpp")] + output["suffix"]
    return Build(source, target, [output["python"], *output["pybind11"]])


def build(what: Build, environment: str) -> None:
    """Compile the module, put it in place atomically, and write its mark.

    Args:
        what: the result of plan().
        environment: the environment; removing it removes the module.

    Raises:
        NodeError: there is no compiler, or it fails; the text has its last output.
    """
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise NodeError("there is no C++ compiler on the node: install g++")
    # Nodes may share the checkout, and process ids repeat between nodes.
    partial = "{0}.{1}.{2}".format(what.target, os.uname().nodename, os.getpid())
    try:
        run_program(what.command(compiler, partial), "build {0}".format(what.source), _environment())
        mark = {"environment": environment, "built_ns": os.stat(partial).st_mtime_ns}
        with open(what.target + MARK, "w", encoding="utf-8") as file:
            json.dump(mark, file)
        os.replace(partial, what.target)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def built_for(checkout: str, environment: str) -> List[str]:
    """Return the modules in a checkout that build() has built for an environment, which may be gone.

    A module that somebody has rebuilt since then is not ours.
    """
    found = []
    for source in SOURCES:
        folder = os.path.dirname(os.path.join(checkout, source))
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            target = os.path.join(folder, name[: -len(MARK)])
            if not name.endswith(MARK) or not os.path.exists(target):
                continue
            try:
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    mark = json.load(file)
            except ValueError:
                continue
            if mark == {"environment": environment, "built_ns": os.stat(target).st_mtime_ns}:
                found.append(target)
    return found


def remove(targets: Sequence[str]) -> None:
    """Remove modules that built_for() returned, and their marks."""
    for target in targets:
        os.unlink(target)
        os.unlink(target + MARK)


def _environment() -> Dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
