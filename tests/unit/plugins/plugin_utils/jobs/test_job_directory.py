"""The directory of a node's jobs, from its variables."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_directory import environment_options


def options_of(**variables: str) -> dict[str, str]:
    return environment_options(variables.get)


def test_jobs_are_in_the_container_unless_the_inventory_says_otherwise() -> None:
    assert options_of() == options_of(rdm_runtime="container") == {"runtime": "container"}


def test_the_hosts_directories_follow_its_configuration_directory() -> None:
    assert options_of(rdm_runtime="host", my_ip="10.2.72.135") == {
        "runtime": "host",
        "environment": "~/.rdm/%n/python",
        "directory": "~/.rdm/%n/jobs",
        "key": "~/.rdm/%n/ssh/id_ed25519",
        "my_ip": "10.2.72.135",
    }
    found = options_of(rdm_runtime="host", rdm_config_dir="/a", python_env_directory="/b", job_directory="/c")
    assert (found["key"], found["environment"], found["directory"]) == ("/a/ssh/id_ed25519", "/b", "/c")


def test_jobs_that_are_submitted_to_slurm_are_on_the_host_and_have_keys_of_their_own() -> None:
    variables = {"job_directory": "/shared/jobs", "python_env_directory": "/shared/python"}
    found = environment_options(variables.get, submits=True)
    assert (found["runtime"], found["key"]) == ("host", "")
    assert (found["directory"], found["environment"]) == ("/shared/jobs", "/shared/python")
