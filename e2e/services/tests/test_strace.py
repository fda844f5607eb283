"""Parsing of strace output, and the calls that serving threads may make."""

from __future__ import annotations

import pytest

from e2e.services import strace

CLIENT = 'recvfrom(11<TCP:[127.0.0.1:4000->127.0.0.1:5001]>, ""..., 8192, 0, NULL, NULL) = 326'
UPSTREAM = 'writev(18<TCP:[127.0.0.1:6001->127.0.0.1:8000]>, [{iov_base=""..., iov_len=9}], 1 <unfinished ...>'
CONNECT = (
    'connect(18<TCP:[7834314]>, {sa_family=AF_INET, sin_port=htons(%d), sin_addr=inet_addr("127.0.0.1")}, 16) = -1'
)


def one(text: str) -> strace.Call:
    (call,) = strace.calls(f"7 {text}\n")
    return call


def test_calls_have_a_thread_a_socket_and_an_address() -> None:
    assert one(CLIENT).socket == ("127.0.0.1:4000", "127.0.0.1:5001")
    assert one(CONNECT % 8000).address == "127.0.0.1:8000"
    assert one('openat(AT_FDCWD</>, "/etc/hosts", O_RDONLY) = 3</etc/hosts>').socket is None
    assert strace.calls('7 <... recvfrom resumed>""..., 1, 0, NULL, NULL) = 1\n7 +++ exited with 0 +++\n') == []


def test_threads_that_read_from_clients_are_serving() -> None:
    trace = f"7 {CLIENT}\n8 {UPSTREAM}\n9 accept4(9<TCP:[127.0.0.1:4000]>, 0x7f, [128], SOCK_CLOEXEC) = -1\n"
    assert strace.serving(strace.calls(trace), 4000) == {7}


@pytest.mark.parametrize(
    "text",
    [
        CLIENT,
        UPSTREAM,
        CONNECT % 8000,
        "socket(AF_INET, SOCK_STREAM|SOCK_CLOEXEC, IPPROTO_IP) = 18<TCP:[1]>",
        'write(4<anon_inode:[eventfd]>, ""..., 8) = 8',
        "epoll_wait(3<anon_inode:[eventpoll]>, [], 1024, 0) = 0",
        "mmap(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f",
        "close(18<TCP:[127.0.0.1:6001->127.0.0.1:8000]>) = 0",
    ],
)
def test_traffic_waiting_and_memory_are_harmless(text: str) -> None:
    assert strace.harmless(one(text), 4000, {8000})


@pytest.mark.parametrize(
    "text",
    [
        CONNECT % 53,
        "writev(18<TCP:[127.0.0.1:6001->127.0.0.1:9000]>, [], 1) = 9",
        "socket(AF_INET, SOCK_DGRAM|SOCK_CLOEXEC, IPPROTO_IP) = 18",
        "socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0) = 18",
        'connect(18<UNIX-STREAM:[1]>, {sa_family=AF_UNIX, sun_path="/run/nscd/socket"}, 110) = 0',
        'openat(AT_FDCWD</>, "/etc/hosts", O_RDONLY|O_CLOEXEC) = 3',
        "fsync(3</tmp/snapshot.json>) = 0",
        'write(2</tmp/gateway.log>, ""..., 236) = 236',
        "mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, 3</tmp/file>, 0) = 0x7f",
        "clock_nanosleep(CLOCK_MONOTONIC, 0, {tv_sec=1}, NULL) = 0",
    ],
)
def test_all_other_calls_are_not_harmless(text: str) -> None:
    assert not strace.harmless(one(text), 4000, {8000})
