"""System calls of a process by thread, from strace, with the addresses of sockets."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.bench import procfs
from tools import progress
from tools.cluster.process import end

__all__ = ["Call", "calls", "harmless", "serving", "threads", "traced"]

# strace splits an interrupted call into two lines; the first one has the arguments.
_LINE = re.compile(r"^(?P<thread>\d+) +(?P<name>[a-z_0-9]+)\((?P<words>.*)$")
_SOCKET = re.compile(r"TCP(?:v6)?:\[(?P<local>[^\]>]+?)(?:->(?P<peer>[^\]]+))?\]")
_ADDRESS = re.compile(r'sin6?_port=htons\((?P<port>\d+)\).*?(?:inet_addr\("|inet_pton\(AF_INET6, ")(?P<host>[^"]+)"')


@dataclass(frozen=True)
class Call:
    """One system call: thread ID, name, and arguments as printed by strace."""

    thread: int
    name: str
    words: str

    @property
    def socket(self) -> tuple[str, str | None] | None:
        """Local and peer address of its TCP socket, if it has one."""
        # The descriptor is the first argument.
        found = _SOCKET.search(self.words.partition(",")[0])
        return (found["local"], found["peer"]) if found else None

    @property
    def address(self) -> str | None:
        """The target of a ``connect`` as ``host:port``; None if it is not an IP address."""
        found = _ADDRESS.search(self.words)
        return f"{found['host']}:{found['port']}" if found else None


@contextmanager
def traced(pid: int, out: Path) -> Iterator[None]:
    """Traces all threads of a process in a ``with`` statement. Raises StepFailed if it cannot attach."""
    command = ["strace", "-q", "-f", "-yy", "-s", "0", "-e", "signal=none", "-o", out, "-p", str(pid)]
    with subprocess.Popen([str(word) for word in command]) as tracer:
        try:
            progress.wait_until("strace", lambda: procfs.traced([pid]), seconds=10)
            yield
        finally:
            end(tracer.pid, how=signal.SIGINT)


def calls(trace: str) -> list[Call]:
    """The calls of a trace, in order."""
    found = []
    for line in trace.splitlines():
        if match := _LINE.match(line):
            found.append(Call(int(match["thread"]), match["name"], match["words"]))
    return found


def threads(pid: int) -> dict[int, str]:
    """The names of the threads of a process, by ID."""
    folder = Path(f"/proc/{pid}/task")
    return {int(thread.name): (thread / "comm").read_text().strip() for thread in folder.iterdir()}


# Calls for waiting, clocks, memory and threads.
_WITHOUT_DESCRIPTOR = """
    brk clock_gettime clone clone3 epoll_create1 exit futex getpid getrandom gettid gettimeofday madvise membarrier
    mprotect mremap munmap prctl restart_syscall rseq rt_sigaction rt_sigprocmask sched_getaffinity sched_yield
    set_robust_list sigaltstack
"""
_HARMLESS = frozenset(_WITHOUT_DESCRIPTOR.split())
_WAITING = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "epoll_ctl")
_MOVING = ("read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg", "shutdown", "close")
_ON_SOCKETS = (*_MOVING, "accept4", "getpeername", "getsockname", "getsockopt", "setsockopt", "ioctl")


def serving(found: Iterable[Call], port: int) -> set[int]:
    """The threads that read from or write to clients of this port."""
    return {call.thread for call in found if call.name in _MOVING and (at := call.socket) and _port(at[0]) == port}


def harmless(call: Call, listener: int, peers: Container[int]) -> bool:
    """Whether a call only concerns memory, waiting, or traffic with the listener's clients or with these ports."""
    if call.name in _HARMLESS or call.name in _WAITING:
        return True
    if call.name in ("mmap", "eventfd2", "timerfd_create"):
        return call.name != "mmap" or "MAP_ANONYMOUS" in call.words
    if call.name == "socket":
        return call.words.startswith(("AF_INET, SOCK_STREAM", "AF_INET6, SOCK_STREAM"))
    if call.name == "connect":
        return call.address is not None and _port(call.address) in peers
    if call.name not in _ON_SOCKETS:
        return False
    if "<anon_inode:[eventfd]>" in call.words or "<anon_inode:[timerfd]>" in call.words:
        return True
    at = call.socket
    if at is None:
        return False
    # strace prints the inode of a socket that is not connected.
    fresh = ":" not in at[0]
    return fresh or _port(at[0]) == listener or (at[1] is not None and _port(at[1]) in peers)


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
