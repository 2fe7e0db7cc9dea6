"""How much a submission may use.

A time limit on every cell and every task, so that one endless loop costs one of them, and one on
the submission as a whole, so that it costs the class no more than that. The other limits keep a
submission from harming the machine; an honest one never meets them.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The limits of one submission.

    ``cell_s`` bounds each cell and each task, ``grace_s`` is how much longer a process may take to
    stop by itself before it is killed, and ``submission_s`` bounds all of it together.
    ``memory_bytes`` is what the submission's processes may use beyond the memory they share with
    the grader, ``disk_bytes`` what they may write in all and ``file_bytes`` in one file,
    ``reply_bytes`` the length of the answers to one task.
    """

    cell_s: float = 10.0
    grace_s: float = 1.0
    submission_s: float = 60.0
    memory_bytes: int = 2048 * MIB
    disk_bytes: int = 64 * MIB
    file_bytes: int = 32 * MIB
    reply_bytes: int = 16 * MIB
    processes: int = 16
    open_files: int = 256

    def apply(self, count_processes: bool = True) -> None:
        """Set the limits that the kernel keeps for a process, and for those it starts.

        Processes are counted for a user, so outside of a user namespace of its own a student's
        process would share their number with all that the instructor runs.
        """
        import resource

        for kind, value in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_CPU, int(self.submission_s) + 1),
            (resource.RLIMIT_DATA, _data_bytes() + self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_NOFILE, self.open_files),
        ):
            _lower(kind, value)
        if count_processes:
            _lower(resource.RLIMIT_NPROC, self.processes)


def _lower(kind: int, value: int) -> None:
    """Lower a limit, where the system has it and does not keep a lower one already."""
    import resource

    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _data_bytes() -> int:
    """Return how much private memory the process has mapped already, torch's share above all."""
    try:
        with open("/proc/self/status") as status:
            line = next(line for line in status if line.startswith("VmData:"))
    except FileNotFoundError:  # not Linux
        return 1024 * MIB
    return int(line.split()[1]) * 1024
