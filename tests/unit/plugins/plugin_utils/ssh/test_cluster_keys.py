"""The keys of a cluster and the key files of each node, checked with OpenSSH's own tools."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import PreconditionFailed
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

NODE = ("mine", "node1", "10.0.0.1")
HOST_KEY, CERTIFICATE = "ssh_host_ed25519_key", "ssh_host_ed25519_key-cert.pub"


def keygen(*arguments: str | Path) -> str:
    done = subprocess.run(["ssh-keygen", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def keys(tmp_path: Path) -> cluster_keys.Keys:
    return cluster_keys.make(str(tmp_path / "keys"), "mine")


def test_a_relative_directory_begins_at_the_inventory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    given = {
        "": "/inventory/.rdm/ssh",
        "keys": "/inventory/keys",
        "~/keys": "/home/me/keys",
        "/keys": "/keys",
    }
    assert {one: cluster_keys.directory_of(one, "/inventory") for one in given} == given


def test_the_keys_are_their_owners_alone_and_never_committed(tmp_path: Path, keys: cluster_keys.Keys) -> None:
    directory = tmp_path / "keys"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for name in (cluster_keys.LOGIN, cluster_keys.AUTHORITY):
        assert stat.S_IMODE((directory / name).stat().st_mode) == 0o600
        assert keygen("-l", "-f", directory / name).split()[1] == keys.fingerprints[name]
        assert keygen("-l", "-f", directory / f"{name}.pub").split()[1] == keys.fingerprints[name]
    assert (directory / ".gitignore").read_text() == "*\n"


def test_existing_keys_stay_and_missing_ones_are_made(tmp_path: Path, keys: cluster_keys.Keys) -> None:
    directory = tmp_path / "keys"
    assert cluster_keys.make(str(directory), "mine").fingerprints == keys.fingerprints
    (directory / cluster_keys.AUTHORITY).unlink()
    (directory / HOST_KEY).write_text("of a version before, which all containers shared")
    assert cluster_keys.read(str(directory)) is None
    now = cluster_keys.make(str(directory), "mine").fingerprints
    assert now[cluster_keys.LOGIN] == keys.fingerprints[cluster_keys.LOGIN]
    assert now[cluster_keys.AUTHORITY] != keys.fingerprints[cluster_keys.AUTHORITY]
    assert not (directory / HOST_KEY).exists()
    renew = cluster_keys.make(str(directory), "mine", renew=True).fingerprints
    assert not set(renew.values()) & set(now.values())


def test_openssh_reads_a_nodes_key_files(tmp_path: Path, keys: cluster_keys.Keys) -> None:
    files = cluster_keys.of_node(keys, *NODE)
    assert tuple(files) == cluster_keys.FILES
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    public = keygen("-y", "-f", tmp_path / HOST_KEY)
    output = keygen("-L", "-f", tmp_path / CERTIFICATE)
    assert "host certificate" in output
    assert "Valid: forever" in output
    assert output.split("Principals:")[1].split()[0] == "10.0.0.1"
    certificate = load_ssh_public_identity(files[CERTIFICATE].encode())
    assert isinstance(certificate, SSHCertificate)
    certificate.verify_cert_signature()
    assert certificate.key_id == b"node1 of mine"
    assert keygen("-l", "-f", tmp_path / CERTIFICATE).split()[1] in keygen("-l", "-f", tmp_path / HOST_KEY)
    assert keygen("-y", "-f", tmp_path / "id_ed25519") == files["authorized_keys"].strip()
    assert public.split()[0] == "ssh-ed25519"
    authority = files["known_hosts"].split()
    assert authority[:2] == ["@cert-authority", "*"]
    assert authority[2:4] == (tmp_path / "keys" / "host_ca.pub").read_text().split()[:2]


def test_keys_are_derived_reproducibly_and_differ_per_node(tmp_path: Path, keys: cluster_keys.Keys) -> None:
    again = cluster_keys.read(str(tmp_path / "keys"))
    assert again is not None
    assert cluster_keys.of_node(again, *NODE) == cluster_keys.of_node(keys, *NODE)
    other = cluster_keys.of_node(keys, "mine", "node2", "10.0.0.2")
    same = {name for name, text in cluster_keys.of_node(keys, *NODE).items() if other[name] == text}
    assert same == {"id_ed25519", "authorized_keys", "known_hosts"}


@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [
        (
            0o640,
            None,
            "can be read by others than its owner: chmod 600, and if somebody may have read it set",
        ),
        (
            0o600,
            "no key",
            "is no ed25519 key without a passphrase: restore it, or set preflight_new_ssh_keys",
        ),
    ],
)
def test_unusable_key_is_refused_with_a_hint(
    tmp_path: Path, keys: cluster_keys.Keys, mode: int, text: str | None, message: str
) -> None:
    path = tmp_path / "keys" / cluster_keys.AUTHORITY
    path.write_text(path.read_text() if text is None else text)
    path.chmod(mode)
    with pytest.raises(PreconditionFailed, match=message):
        cluster_keys.read(str(tmp_path / "keys"))


def test_keys_that_the_plan_file_does_not_know_are_a_problem(tmp_path: Path, keys: cluster_keys.Keys) -> None:
    known = keys.fingerprints
    others = cluster_keys.make(str(tmp_path / "others"), "mine")
    for mine, message in ((keys, ""), (others, "has other keys than those"), (None, "lacks keys")):
        found = cluster_keys.problems("DIR", mine, known, "PLAN")
        assert bool(found) == bool(message)
        for problem in found:
            assert problem.sentence.startswith(f"container_ssh_key_dir DIR {message} that PLAN knows")
            assert "copy id_ed25519 and host_ca there from where the cluster was made" in problem.sentence
            assert "set preflight_new_ssh_keys=true" in problem.sentence
    assert cluster_keys.problems("DIR", None, {}, "PLAN") == []
