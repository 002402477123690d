# SPDX-License-Identifier: GPL-3.0-or-later
"""A table of known messages on standard error; the first one that matches a line counts.

The severity that a line names first counts: a warning that quotes an error is a warning, and an error that
quotes a warning is an error. Only the messages above the warnings are errors even in a warning.

A cause is one clause that can follow a node's name. For each new message, add a line to the tests' corpus.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["error", "warning", "noise"]


class Message(NamedTuple):
    """A known message.

    Attributes:
        name: An identifier for programs.
        kind: ``error`` ends or harms a training, ``warning`` may, ``noise`` never does.
        pattern: Searched for in the line without launchers' prefixes.
        cause: Why it is written.
        program: The program that writes it, for harmless lines that look like errors.
    """

    name: str
    kind: Kind
    pattern: re.Pattern[str]
    cause: str
    program: str = ""


def _error(name: str, pattern: str, cause: str) -> Message:
    return Message(name, "error", re.compile(pattern), cause)


def _warning(name: str, pattern: str, cause: str) -> Message:
    return Message(name, "warning", re.compile(pattern), cause)


def _noise(name: str, pattern: str) -> Message:
    return Message(name, "noise", re.compile(pattern), "")


def _harmless(name: str, program: str, pattern: str, cause: str) -> Message:
    return Message(name, "warning", re.compile(pattern), cause, program)


# Nothing before the warning marks an error. The limit leaves room for the path before a Python warning.
_FIRST = (
    r"(?:(?!(?:Error|Exception|ERROR|CRITICAL|FATAL)\b|[Ee]rror: |[Ff]atal: |NCCL WARN\b|"
    r"\[[EF](?:\d{4})? ).){0,500}?"
)
# Not if another rank wrote into the line: that part may be an error.
_ALONE = r"(?!.*\S\[(?:rank|default)\d+\]:)"

HARMLESS: tuple[Message, ...] = (
    _harmless(
        "link-probe",
        "gcc",
        r"^collect2: error: ld returned 1 exit status|^\S*\bld: cannot find -l",
        "a library is not there to link with; so DeepSpeed finds what its operators may use",
    ),
    _harmless(
        "factory-twice",
        "TensorFlow",
        r"Unable to register cu\w+ factory: Attempting to register factory",
        "two libraries bring the same part of CUDA, and the first one's is used",
    ),
    _harmless(
        "no-repository",
        "git",
        r"^fatal: (?:not a git repository|detected dubious ownership|unsafe repository)",
        "a program queried the version of its sources, and they are not in a repository that it may read",
    ),
    _harmless(
        "slurm-directory",
        "slurmstepd",
        r"^slurmstepd: error: couldn't chdir to .*going to /tmp instead",
        "the directory of the submission is not on this node, and the task starts in /tmp",
    ),
    _harmless(
        "preload",
        "ld.so",
        r"^ERROR: ld\.so: object .* cannot be preloaded\b.*: ignored\.?$",
        "a library in LD_PRELOAD is not there, and programs do without",
    ),
    _harmless(
        "pip-resolver",
        "pip",
        r"^ERROR: pip's dependency resolver",
        "packages are installed whose wishes contradict each other",
    ),
)
"""Lines that look like errors, but that healthy jobs write, too."""

MESSAGES: tuple[Message, ...] = (
    # Harmless lines that look like problems.
    _noise("nccl-info", r"NCCL (?:INFO|TRACE|VERSION)\b"),
    _noise(
        "process-group-end",
        r"process group has NOT been destroyed|destroy_process_group\(\) was "
        "not called",
    ),
    _noise("omp-threads", r"Setting OMP_NUM_THREADS environment variable"),
    _noise("ipv6-socket", r"\[c10d\] The (?:client|server) socket .*\(errno: 97 "),
    _noise("connect-retry", r"\[c10d\] The client socket has failed to connect to"),
    _noise(
        "deprecated",
        # The lookahead quickly rejects most lines: they have neither word.
        r"^(?=.*(?:Warning|deprecated))(?![EF]\d{4} )" + _FIRST + r"(?:(?:Deprecation|Future|"
        r"PendingDeprecation)Warning\b|\bis deprecated\b)",
    ),
    _noise("warning-source", r"^\s*warnings\.warn\(|^\s+super\(\).__init__\("),
    _noise("slurm-waits", r"^(?:srun|salloc): (?:job \d+ (?:queued|has been allocated)|Granted|Pending)"),
    _noise("pdsh-rc", r"^pdsh@\S+: \S+: \w+ exited with exit code 0$"),
    _noise("deepspeed-info", r"\] \[(?:INFO|DEBUG)\] \["),
    _noise("exit-in-order", r"^SystemExit(?:: (?:0|None)|:?)$"),
    _noise("logged-info", r"^\[I(?:\d{4})? |^I\d{4} |^(?:INFO|DEBUG)\b|\[INFO\]| - INFO - "),
    *HARMLESS,
    # Errors even if a program only warns of them: hardware faults, and GPUs that torch cannot use.
    _error(
        "gpu-ecc",
        r"uncorrectable ECC|\bXid \(.*\): (?:48|63|64|94|95)\b",
        "a GPU's memory is defective (ECC)",
    ),
    _error("gpu-lost", r"fallen off the bus|\bXid \(.*\): 79\b|GPU is lost", "a GPU left the bus"),
    _error("gpu-xid", r"\bNVRM: Xid \(", "the NVIDIA driver reports an error of a GPU"),
    _error(
        "gpu-fault",
        r"illegal memory access|Memory access fault by GPU|misaligned address|unspecified launch failure",
        "a kernel used memory that is not its own",
    ),
    _error(
        "gpu-driver",
        r"driver version is insufficient|NVIDIA driver on your system is too old",
        "the NVIDIA driver is older than the program needs",
    ),
    _error(
        "collective-timeout",
        r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:send|recv)",
        "a collective took longer than its timeout: a rank is late, gone or elsewhere",
    ),
    _error(
        "nccl-shm",
        r"NCCL WARN .*(?:shared memory|/dev/shm)",
        "NCCL could not use shared memory; /dev/shm may be too small",
    ),
    _error(
        "disk-full",
        r"No space left on device|Disk quota exceeded|Errno 28\b|Errno 122\b",
        "a disk or a quota is full",
    ),
    # Lines that call themselves warnings.
    _warning("overflow", r"OVERFLOW!|Gradient overflow", "gradients overflowed and the step was skipped"),
    _warning(
        "no-hostfile", r"Unable to find hostfile", "DeepSpeed found no hostfile and uses this host alone"
    ),
    _warning(
        "user-warning",
        r"^(?=.*(?:[Ww]arning|WARN))(?![EF]\d{4} )"
        + _FIRST
        + r"(?:[Ww]arning: |\bWARNING: |\[WARN(?:ING)?\b|[-|] WARNING +[-|])"
        + _ALONE
        + r"|^(?:WARN(?:ING)?\b|W\d{4} |\[(?:NeMo )?W(?:\d{4})? |[\d-]{10}[ T][\d:.,]+:? +W(?:ARN|ARNING)?\b|"
        r"MIOpen\(\w+\): Warning\b)" + _ALONE + r"|^ERROR: ld\.so: .*[:;] ignored\.?$",
        "a program warns",
    ),
    # GPUs.
    _error(
        "gpu-memory",
        r"(?:CUDA|HIP) out of memory|Cuda failure '?out of memory|OutOfMemoryError",
        "a GPU's memory was full",
    ),
    _error(
        "gpu-assert",
        r"device-side assert triggered|\.(?:cuh?|hip):\d+: .*\bAssertion .* failed\.?$",
        "a kernel found an index out of range, such as a token beyond the vocabulary",
    ),
    _error(
        "gpu-binary",
        r"no kernel image is available|hipErrorNoBinaryForGpu|invalid device function",
        "the program was not built for this kind of GPU",
    ),
    _error(
        "gpu-absent",
        r"No (?:CUDA|HIP) GPUs are available|no (?:CUDA|ROCm)-capable device|Found no NVIDIA driver|"
        r"invalid device ordinal",
        "there is no GPU, or fewer than were requested",
    ),
    _error("gpu-hsa", r"HSA_STATUS_ERROR", "ROCm's runtime reports an error of a GPU"),
    _error(
        "gpu-error",
        r"(?:CUDA|HIP) error:|CUBLAS_STATUS_\w+ when calling|CUDNN_STATUS_(?!SUCCESS)\w+",
        "a call of the GPU's runtime failed",
    ),
    _error("miopen", r"^MIOpen(?:\(\w+\))?: Error\b", "MIOpen, ROCm's library of kernels, failed"),
    # Between processes.
    _error(
        "nccl-ib",
        r"NCCL WARN NET/IB ?: Got completion .*status=(?!0\b)|Call to ibv_\w+ failed|"
        r"ibv_\w+ failed with error",
        "InfiniBand failed under NCCL",
    ),
    _warning("nccl-ib-event", r"NCCL WARN NET/IB ?: Got async event", "an InfiniBand port reports an event"),
    _warning(
        "nccl-library",
        r"NCCL WARN Failed to (?:open|find) lib",
        "NCCL did not find a library, and does without",
    ),
    _error(
        "nccl",
        r"DistBackendError|ncclSystemError|ncclInternalError|ncclRemoteError|ncclUnhandledCudaError|"
        r"ncclInvalidUsage|NCCL error\b|NCCL communicator was aborted",
        "NCCL failed",
    ),
    _warning("nccl-warn", r"NCCL WARN\b", "NCCL warns"),
    _error(
        "port-taken",
        r"Address already in use|EADDRINUSE|(?i:port) \d+ is in use",
        "a port is in use, maybe by an earlier job's process",
    ),
    _error(
        "peer-gone",
        r"Connection (?:closed|reset) by peer|Broken pipe|Connection refused|recvValue failed|"
        r"failed to recv, got 0 bytes",
        "the connection to another process broke",
    ),
    _error(
        "unreachable",
        r"No route to host|Name or service not known|Temporary failure in name resolution|"
        r"Host key verification failed|Permission denied \(publickey",
        "another host cannot be reached",
    ),
    _error(
        "rendezvous",
        r"DistStoreError|DistNetworkError|RendezvousTimeoutError|RendezvousConnectionError|"
        r"wait timeout after \d+ms",
        "the processes did not find each other",
    ),
    # The host, the disk, the scheduler.
    _error(
        "host-memory",
        r"oom_kill event|oom-kill|Out Of Memory$|OOM Killed|"
        r"DefaultCPUAllocator: can't allocate memory|^MemoryError|Cannot allocate memory",
        "the host's memory was full",
    ),
    _error(
        "disk",
        r"Input/output error|Stale file handle|Read-only file system|Transport endpoint is not connected",
        "a file system failed",
    ),
    _error("slurm-time", r"CANCELLED .*DUE TO TIME LIMIT", "Slurm ended the job at its time limit"),
    _error("slurm-node", r"DUE TO NODE FAILURE|Node failure|NODE_FAIL", "Slurm lost a node"),
    _error(
        "slurm-cancelled", r"^slurmstepd: error: \*\*\* .*CANCELLED|^scancel:", "somebody cancelled the job"
    ),
    _error(
        "slurm",
        r"^(?:srun|slurmstepd|sbatch|salloc): (?:fatal|error): |^srun: (?:Job step aborted|"
        r"Force Terminated)",
        "Slurm reports that a task failed",
    ),
    # DeepSpeed and training.
    _error(
        "loss-scale",
        r"loss scale already at minimum",
        "gradients overflowed at the lowest loss scale: the training diverged",
    ),
    _error(
        "exit",
        r"exits with return code = (?!0\b)-?\d+|ChildFailedError|failed \(exitcode: -?\d+\)|"
        r"^(?:mpirun|mpiexec|orterun|prterun) (?:noticed that process|detected that one or more processes) |"
        r"\bMPI_ABORT was invoked on rank \d|\bPrimary job +terminated normally, but \d+ process",
        "a process of the training ended with an error",
    ),
    _error(
        "pdsh",
        r"^pdsh@\S+: \S+: \w+ exited with exit code \d+",
        "what pdsh started on a node ended with an error, or ssh did (255)",
    ),
    _error(
        "data",
        r"\.(?:bin|idx)' ?(?:does not exist|not found)|No such file or directory: '[^']*\.(?:bin|idx|npy)'",
        "data of the training are missing",
    ),
    # Python and the C library.
    _error(
        "library",
        r"cannot open shared object file|undefined symbol|version `GLIBC\w*_[\d.]+' not found",
        "a library is missing or of another version",
    ),
    _error(
        "module",
        r"(?:ModuleNotFoundError|ImportError): ",
        "a Python package is missing or of another version",
    ),
    _error(
        "crash",
        r"Segmentation fault|Bus error|^Fatal Python error|core dumped|terminate called|"
        r"Floating point exception|^free\(\): |double free",
        "a process crashed",
    ),
    _error(
        "killed",
        r"^Killed$|^\S+: line \d+: +\d+ Killed\b|SIGKILL",
        "a process was killed, from outside or out of memory",
    ),
    _error(
        "interrupted",
        r"^KeyboardInterrupt|SignalException: .*got signal|\btorchrun was ended by SIG",
        "somebody stopped it",
    ),
    # Errors by their form alone.
    _error(
        "exception",
        r"^(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit)|Exception)\b(?::|$)",
        "Python raised an exception",
    ),
    _error(
        "logged-error",
        r"\[(?:ERROR|CRITICAL|FATAL)\]|^(?:ERROR|CRITICAL|FATAL)\b|^[EF]\d{4} |^\[[EF](?:\d{4})? |"
        r"^(?:[Ff]atal |[Ee]rror)(?:error)?: |^(?:[\w./-]+: )?(?:fatal|error|fatal error): ",
        "a program reports an error",
    ),
)
UNKNOWN = Message("unknown", "noise", re.compile(""), "")
"""Lines that match nothing: most of what programs write to standard error is neither error nor warning."""
