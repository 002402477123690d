"""What the record of a run holds, and what it must not."""

from __future__ import annotations

from pathlib import Path

from rdm_provision.events import RunResult
from rdm_provision.record import Record
from rdm_provision.run import RunSpec
from rdm_provision.translator import Translator


def failed() -> RunResult:
    spec = RunSpec(verb="up", playbook="site", inventory="x", nodes=("a",))
    return Translator(spec).end(2, cancelled=False, record=None)


def test_the_log_of_a_failed_run_has_no_value_that_is_to_be_hidden(tmp_path: Path) -> None:
    log = tmp_path / "stdout"
    log.write_text(
        '+        "KEY=hush",\n+        "NOTE=a \\"b\\" \\u00e9",\n+        "KEY2=hush more",\n+ "MY_IP=1"\n'
    )
    record = Record(tmp_path, "up", "ansible-playbook")
    record.finish(failed(), log, {"KEY=hush", 'NOTE=a "b" é', "KEY2=hush more", "EMPTY="})
    assert record.folder is not None
    assert (record.folder / "ansible.log").read_text(encoding="utf-8") == (
        '+        "KEY=(hidden)",\n+        "NOTE=(hidden)",\n+        "KEY2=(hidden)",\n+ "MY_IP=1"\n'
    )
