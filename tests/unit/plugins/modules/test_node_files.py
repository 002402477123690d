"""The module that writes small files: atomically, and only what changes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base import file_plan
from ansible_collections.rdm.provision.plugins.module_utils.base.shell_files import shell_blocks
from ansible_collections.rdm.provision.plugins.module_utils.base.ssh_config import ssh_client_config
from ansible_collections.rdm.provision.plugins.modules import node_files

from tests.unit.plugins.modules.running import Failed, run_module


def run(*, check: bool = False, diff: bool = False, **params: Any) -> dict[str, Any]:
    return run_module(node_files, params, check=check, diff=diff)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def everything(root: Path, secret: str = "hush") -> dict[str, Any]:
    return {
        "directories": [{"path": str(root / "etc")}, {"path": str(root / "etc/ssh"), "mode": "0700"}],
        "files": [
            {"path": str(root / "etc/nodes"), "content": "node1 10.0.0.1\n"},
            {"path": str(root / "etc/ssh/key"), "secret_content": secret, "mode": "0600"},
        ],
        "blocks": [
            {"path": str(root / "bashrc"), "name": "my_ip", "content": "export A=1", "insert": "start"}
        ],
    }


def test_files_are_written_once(tmp_path: Path) -> None:
    (tmp_path / "bashrc").write_text("old\n")
    first = run(**everything(tmp_path))
    assert first["changed"]
    assert first["made"] == [str(tmp_path / "etc"), str(tmp_path / "etc/ssh")]
    assert (tmp_path / "etc/nodes").read_text() == "node1 10.0.0.1\n"
    assert mode(tmp_path / "etc/nodes") == 0o644
    assert mode(tmp_path / "etc/ssh/key") == 0o600
    assert mode(tmp_path / "etc/ssh") == 0o700
    assert (tmp_path / "bashrc").read_text().startswith("# BEGIN rdm-provision my_ip\nexport A=1\n")
    inodes = {path: path.stat().st_ino for path in tmp_path.rglob("*")}

    assert run(**everything(tmp_path)) == {"changed": False, "paths": [], "made": [], "kept": []}
    assert inodes == {path: path.stat().st_ino for path in tmp_path.rglob("*")}


def test_nothing_is_written_unless_a_program_takes_the_content(tmp_path: Path) -> None:
    conf = {"path": str(tmp_path / "conf"), "validate": ["sh", "-c", "grep good $0 || ! echo $0: bad", "%s"]}
    with pytest.raises(Failed, match=f"nothing was written: {tmp_path}/conf would not be valid: .*conf: bad"):
        run(files=[{"path": str(tmp_path / "other"), "content": ""}, {**conf, "content": "x"}])
    assert list(tmp_path.iterdir()) == []
    assert run(files=[{**conf, "content": "good"}])["changed"]


def test_check_mode_reports_the_same_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "bashrc").write_text("old\n")
    checked = run(check=True, **everything(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bashrc"]
    assert (tmp_path / "bashrc").read_text() == "old\n"
    assert run(**everything(tmp_path)) == checked


def test_the_difference_shows_lines_but_no_secret(tmp_path: Path) -> None:
    diff = run(diff=True, **everything(tmp_path))["diff"]
    assert {"node1 10.0.0.1\n", "(secret)\n"} <= {part["after"] for part in diff}
    again = run(diff=True, **everything(tmp_path, secret="another"))["diff"]
    assert [part["after"] for part in again] == ["(another secret)\n"]
    gone = run(diff=True, files=[{"path": str(tmp_path / "etc/ssh/key"), "state": "absent"}])["diff"]
    assert [(part["before"], part["after"]) for part in gone] == [("(secret)\n", "")]
    assert "hush" not in str(diff + again + gone)


def ssh_config(tmp_path: Path, address_map: str) -> dict[str, Any]:
    cluster = {"address_map": address_map, "port": 2222}
    return {"files": [{"path": str(tmp_path / "config"), "ssh_client_config": cluster}]}


def test_an_ssh_config_is_worked_out_on_the_node(tmp_path: Path) -> None:
    nodes = "n1 10.0.0.1\nn2 10.0.0.2\n"
    run(**ssh_config(tmp_path, nodes))
    written = (tmp_path / "config").read_text()
    assert written == ssh_client_config(nodes, 2222, "/etc/rdm/ssh")
    assert not run(**ssh_config(tmp_path, nodes))["changed"]
    (part,) = run(diff=True, **ssh_config(tmp_path, nodes + "n3 10.0.0.3\n"))["diff"]
    assert part["before"] == written
    assert "  HostName 10.0.0.3\n" in part["after"]


def test_an_ssh_config_that_cannot_be_made_leaves_everything_untouched(tmp_path: Path) -> None:
    wanted = ssh_config(tmp_path, "n1 10.0.0.1\n-x 10.0.0.2\n")
    wanted["files"].insert(0, {"path": str(tmp_path / "other"), "content": "x"})
    with pytest.raises(Failed, match=r"config: '-x 10.0.0.2' is not a node name and an address"):
        run(**wanted)
    assert list(tmp_path.iterdir()) == []


def test_diff_of_a_long_file_has_at_most_a_hundred_changed_lines(tmp_path: Path) -> None:
    path = str(tmp_path / "nodes")
    lines = [f"node{number} 10.0.{number // 250}.{number % 250}\n" for number in range(5000)]

    def shown(content: str, mode: str = "0644") -> str:
        (part,) = run(diff=True, files=[{"path": path, "content": content, "mode": mode}])["diff"]
        return str(part["prepared"])

    first = shown("".join(lines)).splitlines()
    assert first[:5] == [
        f"--- {path}",
        f"+++ {path}",
        "@@ -0,0 +1,5000 @@",
        "+node0 10.0.0.0",
        "+node1 10.0.0.1",
    ]
    assert len(first) == 101
    assert first[-1] == "(4903 more lines)"
    changed = [*lines[:-1], "node4999 10.9.9.9"]
    assert shown("".join(changed)).splitlines()[-2:] == ["-node4999 10.0.19.249", "+node4999 10.9.9.9"]
    assert shown("".join(changed), "0640") == f"--- {path} (mode 0644)\n+++ {path} (mode 0640)\n"
    secret = run(diff=True, files=[{"path": path, "secret_content": "x" * 9000, "mode": "0600"}])["diff"]
    assert "xxx" not in str(secret)


def test_a_wrong_mode_is_repaired_and_shown(tmp_path: Path) -> None:
    run(**everything(tmp_path))
    (tmp_path / "etc/ssh/key").chmod(0o644)
    (tmp_path / "etc/ssh").chmod(0o777)
    result = run(diff=True, **everything(tmp_path))
    assert result["paths"] == [str(tmp_path / "etc/ssh"), str(tmp_path / "etc/ssh/key")]
    assert any("0644" in part["before_header"] and "0600" in part["after_header"] for part in result["diff"])
    assert mode(tmp_path / "etc/ssh/key") == 0o600
    assert mode(tmp_path / "etc/ssh") == 0o700


def taken_away(root: Path) -> dict[str, Any]:
    params = everything(root)
    for entry in [*params["directories"], *params["files"], *params["blocks"]]:
        entry["state"] = "absent"
    return params


@pytest.mark.parametrize("before", [None, "", "old", "old\n"])
def test_absent_leaves_earlier_files(tmp_path: Path, before: str | None) -> None:
    bashrc = tmp_path / "bashrc"
    if before is not None:
        bashrc.write_text(before)
        bashrc.chmod(0o640)
    run(**everything(tmp_path))
    result = run(**taken_away(tmp_path))
    assert result["changed"]
    assert list(tmp_path.iterdir()) == ([] if before is None else [bashrc])
    if before is not None:
        assert bashrc.read_text() == before
        assert mode(bashrc) == 0o640
    assert not run(**taken_away(tmp_path))["changed"]


def test_a_directory_with_other_things_in_it_stays(tmp_path: Path) -> None:
    run(**everything(tmp_path))
    (tmp_path / "etc/foreign").write_text("mine")
    (tmp_path / "etc/ssh/.rdm-provision-x1y2").write_text("left by a killed run")
    result = run(**taken_away(tmp_path))
    assert result["kept"] == [str(tmp_path / "etc")]
    # The mark stays, so that a later call can remove the directory.
    assert {path.name for path in (tmp_path / "etc").iterdir()} == {"foreign", ".rdm-provision-made"}


def test_a_directory_that_was_there_before_keeps_its_mode_and_stays(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir(mode=0o700)
    run(**everything(tmp_path))
    assert mode(tmp_path / "etc") == 0o700
    assert run(**taken_away(tmp_path))["kept"] == [str(tmp_path / "etc")]
    assert mode(tmp_path / "etc") == 0o700
    assert [path.name for path in tmp_path.iterdir()] == ["etc"]
    assert list((tmp_path / "etc").iterdir()) == []


def test_configured_mode_applies_to_existing_directories_too(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    assert run(directories=[{"path": str(tmp_path / "a"), "mode": "0700"}])["changed"]
    assert mode(tmp_path / "a") == 0o700


def test_own_directory_gets_its_mode_back_and_is_removed_later(tmp_path: Path) -> None:
    run(directories=[{"path": str(tmp_path / "a")}])
    (tmp_path / "a").chmod(0o777)
    assert run(directories=[{"path": str(tmp_path / "a")}])["changed"]
    assert mode(tmp_path / "a") == 0o755
    run(directories=[{"path": str(tmp_path / "a"), "state": "absent"}])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_above_may_be_named_later(tmp_path: Path) -> None:
    both = [str(tmp_path / "a/b"), str(tmp_path / "a")]
    assert run(directories=[{"path": path} for path in both])["made"] == both[::-1]
    run(directories=[{"path": path, "state": "absent"} for path in both])
    assert list(tmp_path.iterdir()) == []


def test_a_block_only_where_the_file_is(tmp_path: Path) -> None:
    assert not run(
        blocks=[{"path": str(tmp_path / "no/zshenv"), "name": "a", "content": "x", "create": False}]
    )["changed"]


def test_a_link_is_followed_for_a_block(tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "dotfiles/bashrc").write_text("old\n")
    (tmp_path / ".bashrc").symlink_to("dotfiles/bashrc")
    run(blocks=[{"path": str(tmp_path / ".bashrc"), "name": "a", "content": "x"}])
    assert (tmp_path / ".bashrc").is_symlink()
    assert "x\n" in (tmp_path / "dotfiles/bashrc").read_text()


@pytest.mark.parametrize("there", [True, False], ids=["file", "dangling"])
def test_a_file_replaces_a_link_and_leaves_its_target(tmp_path: Path, there: bool) -> None:
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "key"
    if there:
        elsewhere.write_text("same\n")
        elsewhere.chmod(0o644)
    path.symlink_to("elsewhere")
    files = [{"path": str(path), "content": "same\n"}]
    shown = run(files=files, check=True, diff=True)["diff"]
    assert [one["before_header"] for one in shown] == [f"{path} (a link to elsewhere)"]
    assert path.is_symlink()
    assert run(files=files)["paths"] == [str(path)]
    assert not path.is_symlink()
    assert path.read_text() == "same\n"
    assert elsewhere.exists() == there
    assert not run(files=files)["changed"]
    path.unlink()
    path.symlink_to("elsewhere")
    assert run(files=[{"path": str(path), "state": "absent"}])["changed"]
    assert not path.is_symlink()
    assert elsewhere.exists() == there


def test_owner_of_a_file_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = everything(tmp_path)
    (tmp_path / "bashrc").write_text("old\n")
    run(**params)
    me = os.geteuid()
    # Only root can change owners. For another user, our files belong to somebody else.
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    found = run(check=True, diff=True, **params)
    ours = ["etc", "etc/ssh", "etc/nodes", "etc/ssh/key"]
    assert found["paths"] == [str(tmp_path / name) for name in ours], "what only holds a block is not ours"
    headers = [one["before_header"] for one in found["diff"]]
    assert f"{tmp_path}/etc/ssh/key (of user {me}, group {os.getegid()})" in headers
    assert "hush" not in str(found)


def test_home_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run(files=[{"path": "~/a", "content": "$(id) 'q' \"d\"\n\nend"}])
    assert (tmp_path / "a").read_text() == "$(id) 'q' \"d\"\n\nend"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"files": [{"path": "relative", "content": ""}]}, "not an absolute path"),
        ({"files": [{"path": "/nowhere/at/all", "content": ""}]}, "there is no directory /nowhere/at"),
        ({"files": [{"path": "/proc/x", "content": "", "mode": "rw"}]}, "no mode"),
        ({"files": [{"path": "/dev/null", "content": ""}]}, "not a regular file"),
        ({"files": [{"path": "/tmp/x"}]}, "content"),
        ({"directories": [{"path": "/dev/null"}]}, "not a directory"),
        ({"blocks": [{"path": "/x", "name": "a\nb"}]}, "cannot name a block"),
        ({"owner": "nobody-has-this-name"}, "no such owner"),
    ],
)
def test_a_problem_is_one_sentence_and_nothing_changes(
    tmp_path: Path, wrong: dict[str, Any], why: str
) -> None:
    params = everything(tmp_path)
    for key, value in wrong.items():
        params[key] = params[key] + value if key in params else value
    with pytest.raises(Failed, match=why):
        run(**params)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("old")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "a"))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Failed, match="No space left"):
        run(files=[{"path": str(tmp_path / "a"), "content": "new"}])
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def with_owner_marker(root: Path, name: str, state: str) -> dict[str, Any]:
    content = {"content": f"{name}\n"} if state == "present" else {}
    return {
        "owner_marker": {"path": str(root / "etc/cluster"), "name": name},
        "directories": [{"path": str(root / "etc"), "state": state}],
        "files": [{"path": str(root / "etc/nodes"), "state": state, **content}],
        "blocks": [{"path": str(root / "bashrc"), "name": name, "content": name, "state": state}],
    }


def test_directory_of_another_cluster_is_neither_written_nor_removed(tmp_path: Path) -> None:
    run(**with_owner_marker(tmp_path, "a", "present"))
    assert (tmp_path / "etc/cluster").read_text() == "a\n"
    assert not run(**with_owner_marker(tmp_path, "a", "present"))["changed"]
    with pytest.raises(Failed, match="etc belongs to the cluster a: choose another directory"):
        run(**with_owner_marker(tmp_path, "b", "present"))
    assert not run(**with_owner_marker(tmp_path, "b", "absent"))["changed"]
    assert (tmp_path / "etc/nodes").read_text() == "a\n"


def test_owner_marker_goes_with_the_last_thing_in_its_directory(tmp_path: Path) -> None:
    run(**with_owner_marker(tmp_path, "a", "present"))
    (tmp_path / "etc/more").write_text("")
    run(**with_owner_marker(tmp_path, "a", "absent"))
    assert sorted(path.name for path in (tmp_path / "etc").glob("[!.]*")) == ["cluster", "more"]
    (tmp_path / "etc/more").unlink()
    run(**with_owner_marker(tmp_path, "a", "absent"))
    assert not (tmp_path / "etc").exists()
    assert not run(**with_owner_marker(tmp_path, "a", "absent"))["changed"]


def shells_of(home: Path) -> list[str]:
    """Return MY_IP in a login shell and in an interactive one, with the user's files."""
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    found = []
    for how in ("-lc", "-ic"):
        command = ["bash", how, "echo MY_IP is $MY_IP; alias fine"]
        run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        found.append(run.stdout)
    return found


def test_foreign_my_ip_line_is_commented_out_and_shells_have_the_right_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_plan, "login_user", lambda: {"home": str(tmp_path)})
    text = "if true; then\n  export MY_IP=10.0.0.9\nfi\n# caf\xe9\nalias fine=true\n"
    (tmp_path / "dotfiles").mkdir()
    real = tmp_path / "dotfiles/bashrc"
    real.write_bytes(text.encode("latin-1"))
    real.chmod(0o600)
    (tmp_path / ".bashrc").symlink_to(real)
    (tmp_path / ".profile").write_text(". ~/.bashrc\n")
    blocks = shell_blocks({"MY_IP": "192.169.16.100"}, "rdm", system=False, zsh=False, home=str(tmp_path))
    run(blocks=blocks)
    before = real.read_bytes()
    assert all("MY_IP is 10.0.0.9" in shell for shell in shells_of(tmp_path))

    repair = {"variable": "MY_IP", "value": "192.169.16.100", "system": False}
    checked = run(check=True, diff=True, blocks=blocks, repairs=[repair])
    assert real.read_bytes() == before
    first = run(diff=True, blocks=blocks, repairs=[repair])
    assert first == checked
    # Nobody else may read it.
    assert [part["after"] for part in first["diff"]] == ["(another secret)\n"]
    assert first["paths"] == [str(real)]
    changed = b"  : # commented out by rdm-provision: export MY_IP=10.0.0.9"
    assert real.read_bytes() == before.replace(b"  export MY_IP=10.0.0.9", changed)
    assert mode(real) == 0o600
    (kept,) = real.parent.glob("bashrc.*~")
    assert (kept.read_bytes(), mode(kept)) == (before, 0o600)
    for shell in shells_of(tmp_path):
        assert "MY_IP is 192.169.16.100" in shell
        assert "alias fine=.true" in shell.replace("'", ".")

    assert not run(blocks=blocks, repairs=[repair])["changed"]
    assert len(list(real.parent.iterdir())) == 2
