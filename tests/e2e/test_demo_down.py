"""`make demo-down` leaves nothing, whatever was done with the demo's cluster."""

from __future__ import annotations

from tests.e2e.demo import Demo
from tests.labs import left_over


def test_make_demo_down_leaves_nothing(demo: Demo) -> None:
    assert left_over(demo.name)
    demo.make("demo-down")
    assert left_over(demo.name) == []
    assert not (demo.clone / "inventory" / demo.name).exists()
    assert demo.run("git", "status", "--porcelain") == ""
    ignored = demo.run("git", "status", "--porcelain", "--ignored").splitlines()
    # Python may write compiled modules anywhere.
    assert [line for line in ignored if not line.endswith("__pycache__/")] == ["!! .venv/"]
