"""Run a playbook with ansible-runner, and yield its events."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rdm_provision import environment
from rdm_provision.results.events import Event, RunFinished, RunResult
from rdm_provision.runner.lock import Lock, cluster_lock_module
from rdm_provision.runner.record import Record
from rdm_provision.runner.run_spec import RunSpec
from rdm_provision.runner.translator import Translator
from rdm_provision.runner.vault import vault_environment

GRACE_S = 10.0
"""Seconds that ansible-playbook has to stop by itself after Ctrl-C, before it is killed."""
_POLL_S = 0.5
_SUPERVISED = Path(__file__).with_name("_supervised.py")


class Run:
    """One run of a playbook, in progress or finished.

    Iterating starts it and yields events until it is over; :meth:`result` runs it to the end. As a context
    manager, it is cancelled when the block is left early.

    >>> with Run(RunSpec(verb="up", playbook="site", inventory="inventory/lab")) as run:  # doctest: +SKIP
    ...     for event in run:
    ...         print(event)
    ...     print(run.result().exit_code)
    """

    def __init__(self, spec: RunSpec) -> None:
        """Prepare a run; nothing is started yet."""
        self.spec = spec
        self._queue: queue.SimpleQueue[Event | BaseException | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._result: RunResult | None = None
        self._over = False
        self._cancelled_at: float | None = None
        self._kill = False
        self._pid: int | None = None
        self._lock: Lock | None = None

    @property
    def command(self) -> str:
        """The equivalent ansible-playbook line."""
        return self.spec.command()

    def start(self) -> None:
        """Start the run, in a thread of its own. Does nothing the second time.

        Raises:
            ClusterBusyError: another run is changing the same cluster.
            ToolMissingError: ansible-playbook or the playbook is missing.
        """
        if self._thread is not None:
            return
        environment.program("ansible-playbook")
        environment.playbook(self.spec.playbook)
        if self.spec.exclusive and self.spec.home is not None:
            self._lock = Lock(self.spec.home, self.spec.verb)
        self._thread = threading.Thread(target=self._work, name=f"rdm-{self.spec.verb}", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Event]:
        """Start if necessary, and yield events until the run is over."""
        self.start()
        while not self._over:
            item = self._queue.get()
            if item is None:
                self._over = True
            elif isinstance(item, BaseException):
                self._over = True
                raise item
            else:
                if isinstance(item, RunFinished):
                    self._result = item.result
                yield item

    def result(self) -> RunResult:
        """Run to the end and return the result. Ctrl-C cancels the run, and is raised when it has stopped."""
        try:
            for _ in self:
                pass
        except KeyboardInterrupt:
            self.cancel()
            self._drain()
            raise
        if self._result is None:
            raise RuntimeError("the run ended without a result")
        return self._result

    def cancel(self) -> None:
        """Stop ansible-playbook as Ctrl-C does; a second call kills it. Go on iterating to the end."""
        if self._thread is None:
            self._cancelled_at = time.monotonic()
            return
        if self._cancelled_at is not None:
            self._kill = True
            return
        self._cancelled_at = time.monotonic()
        if self._pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGINT)

    def __enter__(self) -> Run:
        """Return the run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel the run if it is still going, and wait for it to stop."""
        if self._thread is not None and not self._over:
            self.cancel()
            self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(Exception):
            for _ in self:
                pass

    def _cancel_now(self) -> bool:
        """Whether ansible-runner should kill the process; it calls this every half second."""
        if self._cancelled_at is None:
            return False
        overdue = time.monotonic() - self._cancelled_at > GRACE_S
        return self._kill or self._pid is None or overdue

    def _work(self) -> None:
        """Run ansible-playbook through ansible-runner, and translate its events. The body of the thread."""
        try:
            _remove_stale()
            folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-{_process_space()}-"))
            try:
                self._run_in(folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        except BaseException as error:
            self._queue.put(error)
        finally:
            if self._lock is not None:
                self._lock.release()
            self._queue.put(None)

    def _environment(self, folder: Path) -> dict[str, str]:
        """Return what is added to this process's environment for ansible-playbook."""
        spec = self.spec
        env = {**environment.ansible_environment(), **spec.env, **vault_environment(spec.vault)}
        # The default drops results beyond 700 kB; the plan of a large cluster is bigger.
        env |= {"MAX_EVENT_RES": "1000000000"}
        # Ansible's output is rarely read, and ansible-runner would keep all of it in memory until the end.
        env |= {"ANSIBLE_STDOUT_CALLBACK": "default" if spec.verbosity else "rdm.provision.no_diffs"}
        # A killed ansible-playbook leaves files here, which go with the folder.
        env |= {"ANSIBLE_LOCAL_TEMP": str(folder / "ansible")}
        if _has_room_for_socket(folder):
            # From ansible-core 2.21 on, it makes a socket in its temporary directory. The callback restores
            # the user's directory before the first task.
            env |= {"RDM_TMPDIR": env.get("TMPDIR", os.environ.get("TMPDIR", "")), "TMPDIR": str(folder)}
            env["ANSIBLE_CALLBACKS_ENABLED"] += ",rdm.provision.temporary_directory"
        env |= {"RDM_PARENT": str(os.getpid()), "RDM_FOLDER": str(folder)}
        env |= {"RDM_COLLECTIONS": str(environment.collections_root())}
        if self._lock is not None and self._lock.held and spec.home is not None:
            env["RDM_LOCKED"] = str(spec.home.resolve())
        return env

    def _run_in(self, folder: Path) -> None:
        import ansible_runner

        spec = self.spec
        record = Record(spec.home, spec.verb, spec.command(show_values=False))
        translator = Translator(spec)

        def emit(events: Iterator[Event]) -> None:
            for event in events:
                record.add(event)
                self._queue.put(event)

        def on_event(data: dict[str, Any]) -> bool:
            if data.get("event") == "playbook_on_start":
                self._pid = data.get("pid")
                if self._cancelled_at is not None:
                    self._kill = True
            if self._lock is not None and _begins(data, spec.observes_from):
                self._lock.release()
            emit(translator.translate(data))
            # False: ansible-runner writes no file for the event.
            return False

        def should_cancel() -> bool:
            emit(translator.waited())
            return self._cancel_now()

        if variables := spec.variables():
            (folder / "env").mkdir(mode=0o700)
            # ansible-runner hands this file to ansible-playbook.
            (folder / "env" / "extravars").write_text(variables + "\n", encoding="utf-8")
        emit(translator.begin())
        argv = ["-I", str(_SUPERVISED), environment.program("ansible-playbook")]
        argv.append(environment.playbook(spec.playbook))
        argv += [flag for flag, wanted in (("--check", spec.check), ("--diff", spec.diff)) if wanted]
        with _through_a_pipe(spec.become, folder) as password:
            runner = ansible_runner.run(
                private_data_dir=str(folder),
                project_dir=str(Path.cwd()),
                binary=sys.executable,
                inventory=_inventory_argument(spec.inventory),
                limit=spec.limit or None,
                tags=spec.tags or None,
                forks=spec.effective_forks,
                verbosity=spec.verbosity or None,
                cmdline=shlex.join(argv),
                envvars={**self._environment(folder), **password},
                settings={"pexpect_timeout": _POLL_S},
                quiet=True,
                event_handler=on_event,
                cancel_callback=should_cancel,
            )
        result = translator.end(runner.rc, cancelled=self._cancelled_at is not None, record=record.folder)
        record.finish(result, Path(runner.config.artifact_dir) / "stdout", translator.hidden)
        self._queue.put(RunFinished(at=result.seconds, result=result))


@contextlib.contextmanager
def _through_a_pipe(password: str, folder: Path) -> Iterator[dict[str, str]]:
    """Pass the sudo password to ansible-playbook, without a file or a command line that holds it."""
    if not password:
        yield {}
        return
    # A file in memory, as for vault, does not work: Ansible resolves its link under /proc.
    pipe = folder / "become"
    os.mkfifo(pipe, 0o600)

    def write() -> None:
        with contextlib.suppress(OSError):
            pipe.write_bytes(password.encode())

    writer = threading.Thread(target=write, name="rdm-become", daemon=True)
    writer.start()
    try:
        yield {"ANSIBLE_BECOME_PASSWORD_FILE": str(pipe)}
    finally:
        # If Ansible never read it, the writer still waits for a reader.
        with contextlib.suppress(OSError):
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            writer.join()
            os.close(reader)


def _begins(data: Mapping[str, Any], play: str) -> bool:
    """Whether an event of ansible-runner is the start of the play of this name; not if the name is empty."""
    details = data.get("event_data") or {}
    return bool(play) and data.get("event") == "playbook_on_play_start" and details.get("name") == play


_PREFIX = "rdm-provision-"
_SOCKET_PATH_BYTES = 103
"""The longest path of a Unix socket: 107 bytes on Linux, 103 on macOS."""
_ABANDONED_S = 30 * 86400.0
"""Seconds without a change after which a folder counts as abandoned."""


def _process_space() -> str:
    space: str = cluster_lock_module().process_space()
    return space


def _remove_stale() -> None:
    """Remove the temporary folders of our killed runs.

    A folder of this PID namespace goes if its process has ended. One of another namespace (a container that
    shares the directory), or without a mark (of earlier versions), goes if nothing in it has changed for a
    month.
    """
    here = f"{_process_space()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner, _, rest = folder.name.removeprefix(_PREFIX).partition("-")
        with contextlib.suppress(OSError):
            if not owner.isdigit() or folder.lstat().st_uid != os.getuid():
                continue
            dead = not Path("/proc", owner).exists() if rest.startswith(here) else _untouched(folder)
            if dead:
                shutil.rmtree(folder, ignore_errors=True)


def _untouched(folder: Path) -> bool:
    """Whether nothing in a folder, where a run writes its output, has changed for a month."""
    before = time.time() - _ABANDONED_S
    return all(entry.lstat().st_mtime < before for entry in (folder, *folder.rglob("*")))


def _has_room_for_socket(folder: Path) -> bool:
    """Whether the path of a socket that Python's multiprocessing makes in a temporary directory fits."""
    made = folder / "pymp-12345678" / "listener-12345678"
    return len(os.fsencode(made)) <= _SOCKET_PATH_BYTES


def _inventory_argument(inventory: str) -> str | list[str]:
    """Return an inventory as ansible-runner passes it on unchanged; it may write a string to a file."""
    return [inventory if "," in inventory else str(Path(inventory).resolve())]
