"""Whether a program that launchers run is the same on all hosts."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.launch_programs import evaluate


def test_missing_program_is_a_warning_and_other_versions_are_refused() -> None:
    found = {
        "n1": {"version": "4.1.4", "problem": ""},
        "n2": {"version": "4.1.4", "problem": ""},
        "n3": {"version": "5.0.1", "problem": ""},
        "n4": {"version": "", "problem": "has no mpirun on the PATH of commands over ssh"},
    }
    problems, warnings = evaluate("openmpi", found)
    assert sentences(problems) == ["n3: openmpi 5.0.1 is not 4.1.4, as on n1: install the same"]
    assert sentences(warnings) == [
        "n4: it has no mpirun on the PATH of commands over ssh: for the launcher mpirun, install it, "
        "or set openmpi_install: true"
    ]
    assert evaluate("pdsh", {"n1": found["n1"], "n2": found["n2"]}) == ([], [])
