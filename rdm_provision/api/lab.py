"""A lab: a miniature cluster on this machine, for trying, developing and testing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rdm_provision import environment
from rdm_provision.api.arguments import words
from rdm_provision.constants import LAB_MODULE
from rdm_provision.errors import InputError, RdmError
from rdm_provision.runner.run import Run
from rdm_provision.runner.run_spec import RunSpec

if TYPE_CHECKING:
    from ansible_collections.rdm.provision.rdm_lab.engine import LabEngine

DRIVERS = ("macvlan", "bridge", "ipvlan", "sriov")
"""Drivers of the container network; ``sriov`` has stand-ins for virtual functions in containers."""
HARDWARE = ("container", "vm")
"""What a node is: a container, or a virtual machine with a network card that has virtual functions."""
DEFAULT_NAME = "lab"
_HOST = "localhost"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class LabNode:
    """A lab node as it is now.

    Attributes:
        name: ``n1``, ``n2``…
        address: where ssh goes.
        state: Docker's word: ``running``, or such as ``exited`` after a stop.
        cable: ``plugged``, ``cut`` or ``unplugged``: its link to the fabric.
        engine: ``ready``, or why its Docker Engine is not; empty if the node does not run.
    """

    name: str
    address: str
    state: str
    cable: str
    engine: str

    @property
    def healthy(self) -> bool:
        """Whether it runs, is plugged in, and its engine answers."""
        return (self.state, self.cable, self.engine) == ("running", "plugged", "ready")


class Lab:
    """A lab, whether it exists or not.

    >>> lab = Lab("mine")
    >>> lab.up(nodes=2).result()  # doctest: +SKIP
    >>> [node.address for node in lab.status()]  # doctest: +SKIP
    ['10.20.0.11', '10.20.0.12']

    Args:
        name: up to 30 lower-case letters, digits and inner hyphens; several labs may exist side by side.
        directory: its inventory is written to ``inventory/NAME`` in here; default: the current directory.

    Raises:
        InputError: the name cannot be used.
    """

    def __init__(self, name: str = DEFAULT_NAME, directory: str | Path | None = None) -> None:
        environment.make_importable()
        from ansible_collections.rdm.provision.rdm_lab import spec as lab_spec

        self._spec = lab_spec
        with self._input():
            self.name = lab_spec.checked_name(name)
        self.directory = Path.cwd() if directory is None else Path(directory).absolute()

    @property
    def inventory(self) -> Path:
        """The folder of the lab's inventory, whether it exists or not."""
        known = self._call(lambda: self._engine.directory()) if self._engine_answers() else ""
        return Path(known) if known else self.directory / "inventory" / self.name

    # --- whole labs

    def up(
        self,
        nodes: int = 3,
        driver: str = "",
        image_source: str = "auto",
        *,
        hardware: str = "container",
        engine: str = "",
        kernel: str = "",
        trainer: bool = False,
        extras: Sequence[str] = (),
        slurm: bool = False,
        rails: int = 1,
        check: bool = False,
        verbosity: int = 0,
    ) -> Run:
        """Make the lab, or bring it to this number of nodes, all running and plugged in.

        Args:
            nodes: how many; the first, ``n1``, is the master.
            driver: the inventory's driver of the container network; one of :data:`DRIVERS`. Empty means
                ``sriov`` for virtual machines, which have no other, and ``macvlan`` for containers.
            image_source: ``registry``, ``packages``, or ``auto`` for whichever works.
            hardware: one of :data:`HARDWARE`.
            engine: the Docker Engine of virtual machines: ``20.10``, ``26.1``, or ``newest`` for Debian's
                newest. Empty means 26.1. Nodes that are containers have that of this machine's release, or
                ``podman``.
            kernel: that of virtual machines: ``6.12``, or ``newest`` for the newest in the backports of
                their release. Empty means 6.12.
            trainer: containers run the training image, made from the trainer's current sources; with
                ``slurm`` nodes have its packages instead, for :meth:`Cluster.env_up`.
            extras: what the image supports besides training, with ``trainer``: ``finetune``.
            slurm: the nodes have Slurm's packages, a shared directory and stand-ins for GPUs, and the
                inventory names each node's partition, for :meth:`Cluster.slurm_up`.
            rails: how many interfaces each node has on the fabric, ``ib0``, ``ib1`` and so on; virtual
                machines have a card for each, with virtual functions of its own.
            check: change nothing, report what would change.
            verbosity: ansible-playbook's number of ``-v``.

        Raises:
            InputError: no lab can have this number of nodes or rails, this driver, engine or kernel; this
                machine cannot have this hardware; or there are extras without a trainer.
        """
        from ansible_collections.rdm.provision.rdm_lab.interrupted_start import mark
        from ansible_collections.rdm.provision.rdm_lab.vm import machine, recipe

        if hardware not in HARDWARE:
            raise InputError(f"there is no hardware {hardware!r}: it is one of {', '.join(HARDWARE)}")
        driver = driver or (machine.DRIVER if hardware == "vm" else DRIVERS[0])
        if driver not in DRIVERS:
            raise InputError(f"there is no driver {driver!r}: the drivers are {', '.join(DRIVERS)}")
        extras = words("extras", extras)
        if extras and not trainer:
            raise InputError(f"--extra {extras[0]} goes with --trainer")
        if slurm and hardware == "vm":
            raise InputError("a lab with --slurm has nodes that are containers: leave --hardware vm out")
        with self._input():
            self._spec.checked_nodes(nodes)
            self._spec.checked_rails(rails, driver)
            recipe.checked_engine(engine, hardware == "vm")
            self._spec.checked_podman(engine, driver, slurm)
            recipe.checked_kernel(kernel, hardware == "vm")
            if hardware == "vm":
                recipe.checked_architecture(os.uname().machine)
                machine.checked_request(driver, trainer, image_source)
        return self._run(
            "lab up",
            "lab_up",
            {
                "lab_nodes": nodes,
                "lab_directory": str(self.directory / "inventory" / self.name),
                "lab_hardware": hardware,
                "lab_engine": engine,
                "lab_kernel": kernel,
                "lab_driver": driver,
                "lab_image_source": image_source,
                "lab_trainer": trainer,
                "lab_trainer_extras": extras,
                "lab_slurm": slurm,
                "lab_rails": rails,
            },
            # Marks what the run starts, so that `down` can end what a killed run left behind.
            env=mark(self.name),
            check=check,
            verbosity=verbosity,
        )

    def down(self, *, purge: bool = False, check: bool = False, verbosity: int = 0) -> Run:
        """Take the lab away, whatever state it is in.

        Args:
            purge: also remove the cached images, which the next :meth:`up` of any lab makes again.
            check: change nothing, report what would change.
            verbosity: ansible-playbook's number of ``-v``.
        """
        variables = {"lab_directory": str(self.directory / "inventory" / self.name), "lab_purge": purge}
        return self._run("lab down", "lab_down", variables, check=check, verbosity=verbosity)

    def status(self) -> list[LabNode]:
        """Return the state of every node; an empty list if there is no such lab.

        Raises:
            RdmError: this machine's engine does not answer.
        """
        return [LabNode(*state) for state in self._call(lambda: self._engine.status())]

    # --- single nodes

    def require(self, *nodes: str) -> None:
        """Raise an InputError if there is no such lab, or it lacks one of these nodes."""
        from ansible_collections.rdm.provision.rdm_lab.client import EngineProblem, clear

        try:
            with clear():
                for node in nodes:
                    self._engine.node(node)
        except EngineProblem as problem:
            raise RdmError(str(problem)) from None
        except self._spec.LabProblem as problem:
            raise InputError(str(problem)) from None

    def stop(self, node: str) -> bool:
        """Pull a node's power plug; return whether it ran.

        Raises:
            InputError: there is no such node.
        """
        return self._on(node, lambda: self._engine.stop(node))

    def start(self, node: str, timeout: float | None = None) -> bool:
        """Switch a node on, plug it in, and wait until ssh and engine are ready; return whether it was off.

        Args:
            node: which.
            timeout: seconds within which it has to be ready; the default depends on its hardware.

        Raises:
            InputError: there is no such node.
            RdmError: it does not get ready.
        """
        return self._on(node, lambda: self._engine.start(node, timeout))

    def cut(self, node: str) -> bool:
        """Cut a node off the fabric, while ssh still reaches it; return whether it was plugged in.

        Raises:
            InputError: there is no such node.
            RdmError: it does not run.
        """
        return self._on(node, lambda: self._engine.set_cable(node, False))

    def heal(self, node: str) -> bool:
        """Undo :meth:`cut`; return whether it was cut off.

        Raises:
            InputError: there is no such node.
            RdmError: it does not run.
        """
        return self._on(node, lambda: self._engine.set_cable(node, True))

    # --- inside

    @cached_property
    def _engine(self) -> LabEngine:
        from ansible_collections.rdm.provision.rdm_lab.client import connect
        from ansible_collections.rdm.provision.rdm_lab.engine import LabEngine

        return LabEngine(connect(), self.name)

    def _engine_answers(self) -> bool:
        try:
            self._call(lambda: self._engine)
        except RdmError:
            return False
        return True

    def _run(
        self,
        verb: str,
        playbook: str,
        variables: Mapping[str, Any],
        *,
        check: bool,
        verbosity: int,
        env: Mapping[str, str] | None = None,
    ) -> Run:
        return Run(
            RunSpec(
                verb=verb,
                playbook=playbook,
                inventory=f"{_HOST},",
                nodes=(_HOST,),
                extra_vars={"lab_name": self.name, **variables},
                check=check,
                verbosity=verbosity,
                keep=frozenset({LAB_MODULE}),
                env=env or {},
            )
        )

    def _on(self, node: str, action: Callable[[], bool]) -> bool:
        self.require(node)
        return self._call(action)

    def _call(self, function: Callable[[], _T]) -> _T:
        from ansible_collections.rdm.provision.rdm_lab.client import clear

        try:
            with clear():
                return function()
        except self._spec.LabProblem as problem:
            raise RdmError(str(problem)) from None

    @contextmanager
    def _input(self) -> Iterator[None]:
        """Raise what the lab's rules refuse as bad input."""
        try:
            yield
        except self._spec.LabProblem as problem:
            raise InputError(str(problem)) from None
