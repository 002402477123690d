"""The way of a cluster: up, look, use, drift, mend, down. In this order, on one lab."""

from __future__ import annotations

from tests.e2e.conftest import Lab

ADDRESSES = {"n1": "192.169.16.100", "n2": "192.169.16.101", "n3": "192.169.16.102"}


def test_up_provisions_every_node_and_shows_the_fabric(lab: Lab) -> None:
    result = lab.json("up")
    assert result["ok"]
    assert {name: node["my_ip"] for name, node in result["plan"]["nodes"].items()} == ADDRESSES
    rtt = result["fabric"]["rtt_us"]
    assert all(rtt[a][b] > 0 for a in ADDRESSES for b in ADDRESSES if a != b)


def test_a_second_up_changes_nothing_and_says_so(lab: Lab) -> None:
    before = {node: lab.on(node, "docker", "inspect", "--format", "{{.Id}}", "rdm") for node in ADDRESSES}
    result = lab.json("up")
    assert result["ok"]
    assert [node for node in result["nodes"].values() if node["changed"]] == []
    assert before == {
        node: lab.on(node, "docker", "inspect", "--format", "{{.Id}}", "rdm") for node in ADDRESSES
    }
    assert "nothing" in lab.rdm("up").stdout.lower()


def test_ansible_playbook_does_the_same(lab: Lab) -> None:
    shown = lab.product.run("ansible-playbook", "rdm.provision.site", "--inventory", lab.inventory).stdout
    recap = [line for line in shown.splitlines() if "changed=" in line]
    assert len(recap) == 3
    assert all("changed=0" in line and "failed=0" in line and "unreachable=0" in line for line in recap)


def test_show_command_prints_a_line_that_works(lab: Lab) -> None:
    line = lab.rdm("verify", "--show-command").stdout.strip()
    assert "ansible-playbook" in line
    lab.product.run("bash", "-c", line)


def test_the_plan_is_a_file_beside_the_inventory(lab: Lab) -> None:
    text = (lab.inventory / "address_plan.cfg").read_text(encoding="utf-8")
    for node, address in ADDRESSES.items():
        assert f"{node} = {address}" in text


def test_status_shows_what_runs_where(lab: Lab) -> None:
    shown = lab.rdm("status").stdout
    for node, address in ADDRESSES.items():
        assert node in shown
        assert address in shown


def test_exec_runs_in_every_container_or_in_some(lab: Lab) -> None:
    result = lab.json("exec", "--", "printenv", "MY_IP")
    assert {name: out["stdout"].strip() for name, out in result["nodes"].items()} == ADDRESSES
    result = lab.json("exec", "--limit", "n2", "--", "hostname")
    assert {name: out["stdout"].strip() for name, out in result["nodes"].items()} == {"n2": "n2"}


def test_exec_gives_its_words_to_no_shell(lab: Lab) -> None:
    word = "a 'b' \"c\" $(touch /pwned) ; `id`\nd"
    result = lab.json("exec", "--limit", "n1", "--", "printf", "%s", word)
    assert result["nodes"]["n1"]["stdout"] == word


def test_exec_reports_a_failing_command(lab: Lab) -> None:
    lab.rdm("exec", "--limit", "n1", "--", "false", expect=1)


def test_my_ip_is_right_in_every_kind_of_shell(lab: Lab) -> None:
    key = lab.inventory / ".rdm" / "lab" / "id_ed25519"
    known = lab.inventory / ".rdm" / "lab" / "known_hosts"
    inventory = lab.product.run("ansible-inventory", "--inventory", lab.inventory, "--host", "n2").stdout
    address = inventory.split('"ansible_host": "')[1].split('"')[0]
    ssh = [
        "ssh",
        "-o",
        "BatchMode=yes",
        "-o",
        f"UserKnownHostsFile={known}",
        "-i",
        str(key),
        f"rdm@{address}",
    ]
    for shell in ("printenv MY_IP", "bash -lc 'printenv MY_IP'", "bash -ic 'printenv MY_IP'"):
        assert lab.product.run(*ssh, shell).stdout.strip() == ADDRESSES["n2"], shell


def test_containers_reach_each_other_by_ssh_with_host_keys_checked(lab: Lab) -> None:
    for target in ("192.169.16.102", "n3"):
        result = lab.json("exec", "--limit", "n1", "--", "ssh", "-o", "BatchMode=yes", target, "hostname")
        assert result["nodes"]["n1"]["stdout"].strip() == "n3"
    result = lab.json("exec", "--limit", "n1", "--", "ssh", "-G", "192.169.16.102")
    assert "stricthostkeychecking true" in result["nodes"]["n1"]["stdout"].lower()


def test_the_hostfile_is_where_deepspeed_looks(lab: Lab) -> None:
    result = lab.json("exec", "--", "cat", "/job/hostfile")
    expected = "".join(f"{address} slots=2\n" for address in ADDRESSES.values())
    assert [out["stdout"] for out in result["nodes"].values()] == [expected] * 3


def test_check_is_quiet_when_all_is_well_and_names_drift_by_content(lab: Lab) -> None:
    assert [name for name, node in lab.json("check")["nodes"].items() if node["changed"]] == []
    lab.on("n2", "sh", "-c", "echo 'stray line' >> /etc/rdm/nodes")
    result = lab.json("check")
    assert [name for name, node in result["nodes"].items() if node["changed"]] == ["n2"]
    assert any("stray line" in change["diff"] for change in result["nodes"]["n2"]["changes"])
    assert "stray line" in lab.on("n2", "cat", "/etc/rdm/nodes")  # looked, did not touch
    lab.rdm("check", "--exit-code", expect=1)
    assert lab.json("up")["ok"]
    assert "stray line" not in lab.on("n2", "cat", "/etc/rdm/nodes")
    lab.rdm("check", "--exit-code")


def test_no_training_container_is_privileged(lab: Lab) -> None:
    for node in ADDRESSES:
        assert (
            lab.on(node, "docker", "inspect", "--format", "{{.HostConfig.Privileged}}", "rdm").strip()
            == "false"
        )


def test_no_secret_is_readable_by_others_or_in_a_record(lab: Lab) -> None:
    private = (lab.inventory / ".rdm" / "ssh" / "id_ed25519").read_text(encoding="utf-8")
    body = private.splitlines()[2]
    assert lab.on("n1", "find", "/etc/rdm/ssh", "-name", "id_ed25519", "-perm", "/077").strip() == ""
    for record in (lab.inventory / ".rdm" / "runs").rglob("*"):
        assert not record.is_file() or body not in record.read_text(encoding="utf-8", errors="replace"), (
            record
        )


def test_down_removes_what_is_ours_and_a_second_down_nothing(lab: Lab) -> None:
    assert lab.json("down")["ok"]
    for node in ADDRESSES:
        for kind in (["ps", "--all"], ["network", "ls"]):
            listed = lab.on(node, "docker", *kind, "--quiet", "--filter", "label=rdm.provision.cluster")
            assert listed.strip() == ""
        assert lab.on(node, "sh", "-c", "ls -d /etc/rdm 2>/dev/null || true").strip() == ""
        assert "rdm-lab/cpu:1" in lab.on(node, "docker", "images", "--format", "{{.Repository}}:{{.Tag}}")
    result = lab.json("down")
    assert [name for name, node in result["nodes"].items() if node["changed"]] == []
