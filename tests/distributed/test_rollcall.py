"""The roll call before JAX connects the processes: who is missing, who came twice, whose versions differ. Needs no JAX."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time

import pytest

from shardwise.distributed.launching import free_port
from shardwise.distributed.rollcall import Present, call, here
from shardwise.errors import DistributedError

VERSIONS = {"jax": "0.12", "shardwise": "0.1"}


def called(own: list[Present], seconds: float = 20.0) -> list[tuple[Present, ...] | DistributedError]:
    """What each process of a roll call gets, or is told."""
    address = f"127.0.0.1:{free_port()}"
    got: dict[int, tuple[Present, ...] | DistributedError] = {}

    def one(index: int) -> None:
        try:
            got[index] = call(own[index], address, seconds)
        except DistributedError as error:
            got[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(own))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [got[index] for index in range(len(own))]


def test_all_come_and_each_gets_all():
    own = [here(i, 4, VERSIONS) for i in range(4)]
    assert called(own) == [tuple(own)] * 4


def test_the_port_is_free_again_at_once():
    port = free_port()
    own = [here(i, 2, VERSIONS) for i in range(2)]
    for _ in range(3):
        thread = threading.Thread(target=call, args=(own[1], f"127.0.0.1:{port}", 20.0))
        thread.start()
        assert call(own[0], f"127.0.0.1:{port}", 20.0) == tuple(own)
        thread.join(20)


def test_missing_processes_are_named_to_all_that_came():
    started = time.monotonic()
    for told in called([here(0, 5, VERSIONS), here(2, 5, VERSIONS)], seconds=0.5):
        assert "processes 1, 3, 4 of 5 did not come within 0.5 seconds" in str(told)
    assert time.monotonic() - started < 10


def test_process_0_that_never_comes_is_named():
    with pytest.raises(DistributedError, match=r"process 1 of 2 waited 0.3 seconds for process 0 at 127.0.0.1:\d+"):
        call(here(1, 2, VERSIONS), f"127.0.0.1:{free_port()}", 0.3)


def test_another_version_is_told_to_all():
    old = here(1, 3, VERSIONS | {"jax": "0.10"})
    for told in called([here(0, 3, VERSIONS), old, here(2, 3, VERSIONS)]):
        assert "jax\n  processes 0, 2: 0.12\n  process 1:      0.10" in str(told)


def test_a_number_that_comes_twice_is_told():
    twin = dataclasses.replace(here(1, 3, VERSIONS), pid=1)
    told = called([here(0, 3, VERSIONS), here(1, 3, VERSIONS), twin])
    assert all("both say that they are the same one of 3 processes" in str(each) for each in told)


def test_what_is_no_process_is_not_counted():
    port = free_port()
    own = [here(i, 2, VERSIONS) for i in range(2)]
    got: list[tuple[Present, ...]] = []
    thread = threading.Thread(target=lambda: got.append(call(own[0], f"127.0.0.1:{port}", 20.0)))
    thread.start()
    time.sleep(0.2)
    for said in (b"GET / HTTP/1.1\r\n\r\n\n", b"{}\n", b"\n"):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(said)
    call(own[1], f"127.0.0.1:{port}", 20.0)
    thread.join(20)
    assert got == [tuple(own)]


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DistributedError, match=f"cannot listen on port {port}: .*choose another port"):
            call(here(0, 2, VERSIONS), f"127.0.0.1:{port}", 1.0)


@pytest.mark.parametrize("address", ["nowhere", "host:", ":123", "host:port"])
def test_an_address_that_is_none_is_told(address):
    with pytest.raises(DistributedError, match="is no address: give the host and port"):
        call(here(0, 2, VERSIONS), address, 1.0)
