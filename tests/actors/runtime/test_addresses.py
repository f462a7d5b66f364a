"""Addresses: by which one other hosts reach this one."""

from __future__ import annotations

import socket

import pytest

from pageant.actors.runtime.transport.addresses import endpoint_towards, is_private, own_address


@pytest.mark.parametrize(
    "endpoints",
    [
        [],
        ["ipc:///tmp/a"],
        ["tcp://127.0.0.1:5700", "tcp://localhost:1", "tcp://[::1]:1"],
        ["tcp://0.0.0.0:5700"],
    ],
)
def test_a_topology_of_one_host_has_the_loopback_address(endpoints: list[str]) -> None:
    assert own_address(endpoints) == "127.0.0.1"


def test_the_address_is_of_the_interface_that_leads_to_the_first_endpoint_of_another_host() -> None:
    """127.0.0.2 stands for the other host: it is no name of this one's, and is reached from an address like it."""
    own = own_address(["ipc:///tmp/a", "tcp://127.0.0.1:5700", "tcp://127.0.0.2:5701"])
    assert endpoint_towards("tcp://127.0.0.2:5701") == f"tcp://{own}:*"
    with socket.socket() as listener:
        listener.bind((own, 0))  # an address of this host


@pytest.mark.parametrize(
    ("address", "private"), [("10.0.0.1", True), ("192.168.3.4", True), ("fd00::1", True), ("8.8.4.4", False)]
)
def test_public_addresses_are_told_from_others(address: str, private: bool) -> None:
    assert is_private(address) is private
