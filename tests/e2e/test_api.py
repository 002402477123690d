"""The Python API of the installed wheel, in a user's program."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.product import ADDRESSES, NODES, ROOT, Lab


def test_the_readmes_lines_and_then_every_verb(lab: Lab) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = readme.partition("```python\n")[2].partition("```")[0]
    assert "inventory/mycluster" in lines
    assert "node7" in lines
    lines = lines.replace("mycluster", lab.name).replace("node7", "n3")
    lab.bare(images=True)

    program = Path(__file__).with_name("api_program.py")
    found = json.loads(lab.product.run(lab.product.bin / "python", "-I", program, lines).stdout)

    assert found["printed"][0].startswith("RunStarted(")
    assert found["printed"][-2].startswith("RunFinished(")
    assert found["printed"][-1] == "changed"
    assert found["up"]["ok"]
    assert found["nodes"] == {name: [rank, ADDRESSES[name]] for rank, name in enumerate(NODES)}
    assert found["plan"] == ADDRESSES
    assert set(found["check"]["events"]) >= {"run_started", "phase_started", "node_result", "run_finished"}
    assert found["check"]["changed"] == []
    assert found["verify"] == {"n1": True, "n3": True}
    assert found["status"] == {name: [address, True] for name, address in ADDRESSES.items()}
    assert found["exec"] == {name: [0, ADDRESSES[name]] for name in ("n2", "n3")}
    assert found["down"] == [0, list(NODES)]
    assert [lab.images(node) for node in NODES] == ["", "", ""]
