# SPDX-License-Identifier: GPL-3.0-or-later
"""The workers that a launcher starts: specs from a template, and the commands that submit and cancel them.

The secret is never in a spec, an argument or a log. It is next to the specs, in files that only the owner can
read, in the forms that services accept: plain, as an environment file for Docker, and as a Secret's manifest.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta

from rdm_core.atomic_file import write_atomically
from rdm_core.errors import FAILED, TrainerError
from rdm_log.printable import printable

SPECS = Path(__file__).with_name("specs")
_SUBMIT_S = 120.0
_LONGEST_NAME = 40
"""The limit for names made from a job's name: Kubernetes and Docker add to them, and allow 63 characters."""
_OWN = ("NODE_RANK", "NUM_NODES", "RDZV_ID", "NAME", "SPEC_DIR", "JOB_DIR", "COMMAND")
"""Variables that --set must not replace."""
_LAUNCHERS = ("ROLE", "NUM_NODES", "NODE_RANK", "MASTER_ADDR", "GPUS_PER_NODE")


@dataclass(frozen=True)
class WorkerSpec:
    """How workers are started.

    Args:
        template: A jinja2 template.
        submit: The command that starts one, with ``{spec}``.
        cancel: The command that cancels it; none if empty.
        values: Further variables of the template, from ``--set``.
    """

    template: Path
    submit: tuple[str, ...]
    cancel: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)


def read_spec(template: str, submit: str | None, cancel: str | None, given: Sequence[str]) -> WorkerSpec:
    """Return how workers are started, from the user's options.

    Args:
        template: A file, or the name of one of ours: docker, kubernetes, slurm, vessl.
        submit: The command, in shell syntax, although no shell runs it.
        cancel: Likewise.
        given: ``KEY=VALUE``.

    Raises:
        TrainerError: An option is invalid.
    """
    path = Path(template)
    if not path.is_file():
        ours = {one.name.partition(".")[0]: one for one in sorted(SPECS.glob("*.j2"))}
        if template not in ours:
            raise TrainerError(f"--worker-spec {template} is no file, and none of ours: {', '.join(ours)}.")
        path = ours[template]
    if not submit:
        raise TrainerError(
            "--worker-spec needs the command that starts a worker from it, as --submit 'sbatch {spec}'."
        )
    values = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.isidentifier():
            raise TrainerError(f"--set {one!r} is not KEY=VALUE, with a key of letters, digits and '_'.")
        if key in _OWN:
            raise TrainerError(f"--set {key} would replace what the launcher itself knows.")
        values[key] = value
    return WorkerSpec(path, _words("--submit", submit), _words("--cancel", cancel or ""), values)


def _words(option: str, command: str) -> tuple[str, ...]:
    """Return a command's words, split as by a shell."""
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise TrainerError(f"{option} {command!r} is no command: {error}.") from None
    if option == "--submit" and not any("{spec}" in word for word in words):
        raise TrainerError(f"--submit {command!r} lacks {{spec}}, where the path of the worker's spec goes.")
    if words and shutil.which(words[0]) is None:
        raise TrainerError(f"{option}: there is no program {words[0]!r} here.")
    return words


def job_name(job: str) -> str:
    """Return a job's name in a form that services and files accept; different jobs keep different names."""
    name = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
    if name == job and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(os.fsencode(job)).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9].strip('-')}-{digest}".lstrip("-")


@dataclass
class _Submitted:
    """One submission.

    Args:
        what: For the user: a worker, or all of them.
        spec: The file.
        name: The service's id for it: the last word that the command printed.
    """

    what: str
    spec: Path
    name: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.name or self.spec})"


class Workers:
    """The workers of one launcher, and those that an earlier, killed one has left.

    Args:
        spec: How they are started.
        folder: The directory for the specs, the secret and the record of submissions.
        secret: The members'.
        variables: The template's variables that are the same for all workers.
        show: Prints a line for the user.

    Raises:
        TrainerError: The template cannot be used.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        folder: Path,
        secret: str,
        variables: Mapping[str, Any],
        show: Callable[[str], None],
    ) -> None:
        self._spec, self._folder, self._secret, self._show = spec, folder, secret, show
        # Unique, so that a later launcher of the same job neither touches nor clashes with these workers.
        self._name = f"{job_name(str(variables['RDZV_ID']))}-{secrets.token_hex(3)}"
        files = self._files = {
            "RDZV_SECRET_FILE": folder / "secret",
            "RDZV_SECRET_ENV_FILE": folder / "secret.env",
        }
        self._manifest = folder / "secret.json"
        self._record = folder / "submitted.json"
        self._variables = {
            **{name: str(path) for name, path in files.items()},
            "NAME": self._name,
            "RDZV_SECRET_NAME": self._name,
            "SPEC_DIR": str(folder),
            **variables,
            **spec.values,
        }
        self._specs = list(self._rendered())
        self._submitted: list[_Submitted] = []
        self._thread: threading.Thread | None = None
        self._should_stop = threading.Event()
        self.problem: str = ""
        """Why a worker could not be submitted; empty otherwise."""

    def start(self) -> None:
        """Submit all in the background.

        Raises:
            TrainerError: The specs cannot be written.
        """
        self._cancel_earlier()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            write_atomically(self._files["RDZV_SECRET_FILE"], f"{self._secret}\n", mode=0o600)
            write_atomically(self._files["RDZV_SECRET_ENV_FILE"], f"RDZV_SECRET={self._secret}\n", mode=0o600)
            manifest = {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self._name},
                "type": "Opaque",
                "data": {"secret": base64.b64encode(os.fsencode(self._secret)).decode()},
            }
            write_atomically(self._manifest, json.dumps(manifest, indent=1) + "\n", mode=0o600)
            for _, path, text in self._specs:
                write_atomically(path, text, mode=0o600)
        except OSError as error:
            raise TrainerError(
                f"The workers' specs cannot be written into {self._folder}: {error}."
            ) from None
        self._thread = threading.Thread(target=self._submit_all, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Cancel all submitted workers, or list them if there is no command for that."""
        self._stop_submitting()
        remain = [self._cancel(one) for one in reversed(self._submitted)]
        if not any(remain):
            self._forget()

    def leave(self) -> None:
        """Stop submitting, and drop the record of the workers, which end with the job."""
        self._stop_submitting()
        self._forget()

    def _rendered(self) -> Iterator[tuple[str, Path, str]]:
        """Yield each spec: what it starts, its path and its text."""
        template = self._spec.template
        environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(template.parent),
            undefined=jinja2.StrictUndefined,
            # No HTML: the templates are YAML and shell, and use tojson and quote.
            autoescape=False,  # noqa: S701
            keep_trailing_newline=True,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        # Both convert an undefined value to text, which raises an error with its name.
        environment.filters["quote"] = lambda value: shlex.quote(str(value))
        environment.policies["json.dumps_kwargs"] = {"default": str}
        try:
            source = environment.loader.get_source(environment, template.name)[0]  # type: ignore[union-attr]
            is_each = "NODE_RANK" in jinja2.meta.find_undeclared_variables(environment.parse(source))
            page = environment.get_template(template.name)
            stem, dot, kind = template.name.removesuffix(".j2").partition(".")
            for rank in range(1, int(self._variables["NUM_NODES"])):
                if not is_each:
                    yield "All workers", self._folder / f"{stem}{dot}{kind}", page.render(self._variables)
                    return
                text = page.render(self._variables, NODE_RANK=rank)
                yield f"Worker {rank}", self._folder / f"{stem}-{rank}{dot}{kind}", text
        except jinja2.UndefinedError as error:
            raise TrainerError(f"{template} lacks a value: {error}; give it with --set KEY=VALUE.") from None
        except jinja2.TemplateSyntaxError as error:
            raise TrainerError(f"{template}, line {error.lineno}: {error.message}.") from None
        except (jinja2.TemplateError, ArithmeticError, LookupError, OSError, TypeError, ValueError) as error:
            raise TrainerError(f"{template} cannot be filled in: {error}.") from None

    def _submit_all(self) -> None:
        for what, path, _ in self._specs:
            if self._should_stop.is_set():
                return
            one = _Submitted(what, path)
            # Recorded before the command, in case this process is killed while it runs.
            self._submitted.append(one)
            try:
                self._write_record()
            except OSError as error:
                self.problem = f"{what} was not submitted: {self._record} cannot be written: {error}."
                return
            code, output, message = self._run(self._spec.submit, one)
            if code:
                self.problem = f"{what} was not submitted: {message}."
                return
            words = output.split()
            # Such as "Submitted batch job 17" or, with --parsable, "17;cluster".
            one.name = printable(words[-1].partition(";")[0]) if words else ""
            with contextlib.suppress(OSError):
                self._write_record()
            self._show(f"{what} {'are' if what.startswith('All') else 'is'} submitted: {message or path}.")

    def _stop_submitting(self) -> None:
        self._should_stop.set()
        if self._thread is not None:
            self._thread.join()

    def _write_record(self) -> None:
        """Record the submissions, for the next launcher if this one is killed."""
        entries = [{"what": one.what, "spec": str(one.spec), "name": one.name} for one in self._submitted]
        write_atomically(self._record, json.dumps({"job": self._name, "submitted": entries}), mode=0o600)

    def _cancel_earlier(self) -> None:
        """Cancel the workers of an earlier launcher that was killed."""
        try:
            found = json.loads(self._record.read_text())
            earlier = [_Submitted(one["what"], Path(one["spec"]), one["name"]) for one in found["submitted"]]
        except (OSError, ValueError, KeyError, TypeError):
            return
        self._show("An earlier launcher of this job was killed, and has left workers.")
        for one in reversed(earlier):
            self._cancel(one)
        self._record.unlink(missing_ok=True)

    def _cancel(self, one: _Submitted) -> bool:
        """Cancel one, and show the result. Return whether a later launcher should try again."""
        command = self._spec.cancel
        are = "are" if one.what.startswith("All") else "is"
        if not command:
            self._show(f"{one} may go on: there is no --cancel for what was submitted.")
        elif not one.name and any("{id}" in word for word in command):
            # The submit command failed, or printed no id.
            self._show(
                f"{one} may have been submitted: --submit did not print the {{id}} that --cancel needs."
            )
        else:
            code, _, message = self._run(command, one)
            self._show(f"{one} {are} cancelled." if code == 0 else f"{one} {are} not cancelled: {message}.")
            return code != 0
        return False

    def _run(self, command: Sequence[str], one: _Submitted) -> tuple[int, str, str]:
        """Run a command on a submission; return its exit code, its output, and a message for the user."""
        values = {"{spec}": str(one.spec), "{secret}": str(self._manifest), "{id}": one.name}
        words = [re.sub(r"\{(spec|secret|id)\}", lambda found: values[found[0]], word) for word in command]
        # Without the launcher's own variables: Slurm passes the whole environment on to the workers.
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in _LAUNCHERS and not name.startswith("RDZV_")
        }
        shown = shlex.join(words)
        try:
            done = subprocess.run(
                words,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SUBMIT_S,
                # Ctrl-C must not reach the command: the launcher needs its result to know what it started.
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return FAILED, "", f"{shown} took more than {_SUBMIT_S:g} s"
        except OSError as error:
            return FAILED, "", f"{shown} cannot be run: {error.strerror}"
        output = done.stdout.decode(errors="replace")
        if done.returncode:
            errors = done.stderr.decode(errors="replace").split("\n") + output.split("\n")
            last = next((printable(line.strip()) for line in errors if line.strip()), "")
            code = done.returncode if done.returncode > 0 else 128 - done.returncode
            return code, output, f"{shown} ended with exit code {code}{f': {last}' if last else ''}"
        return 0, output, "; ".join(printable(line) for line in output.splitlines() if line.strip())

    def _forget(self) -> None:
        for path in (*self._files.values(), self._manifest, self._record):
            path.unlink(missing_ok=True)
