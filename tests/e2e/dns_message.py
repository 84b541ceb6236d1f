# SPDX-License-Identifier: Apache-2.0
"""As much of RFC 1035 as a test client needs: it builds queries and reads answers."""

import dataclasses
import ipaddress
import secrets
import socket
import struct
import time

A = 1
AAAA = 28
NOERROR, FORMERR, SERVFAIL, NXDOMAIN, REFUSED = 0, 1, 2, 3, 5


@dataclasses.dataclass
class Answer:
    rcode: int
    addresses: list
    truncated: bool
    arrived_ns: int  # CLOCK_MONOTONIC, taken right after the receiving call returned
    source: str


def encode_name(name):
    labels = [label.encode() for label in name.rstrip(".").split(".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def query(name, kind=A, identifier=None):
    identifier = secrets.randbits(16) if identifier is None else identifier
    return struct.pack("!6H", identifier, 0x0100, 1, 0, 0, 0) + encode_name(name) + struct.pack("!2H", kind, 1)


def _skip_name(message, offset):
    while True:
        length = message[offset]
        if length == 0:
            return offset + 1
        if length >= 0xC0:
            return offset + 2
        offset += 1 + length


def parse(message, arrived_ns, source):
    _, flags, questions, answers, _, _ = struct.unpack_from("!6H", message)
    offset = 12
    for _ in range(questions):
        offset = _skip_name(message, offset) + 4
    addresses = []
    for _ in range(answers):
        offset = _skip_name(message, offset)
        kind, _, _, length = struct.unpack_from("!2HIH", message, offset)
        offset += 10
        if kind in (A, AAAA):
            addresses.append(str(ipaddress.ip_address(message[offset : offset + length])))
        offset += length
    return Answer(flags & 0xF, addresses, bool(flags & 0x0200), arrived_ns, source)


def _family(server):
    return socket.AF_INET6 if ":" in server else socket.AF_INET


def ask(name, server, kind=A, timeout=3.0, tcp=False, source_port=0):
    """Asks and waits for the answer; raises TimeoutError or OSError. `source_port` is for UDP; 0: any."""
    message = query(name, kind)
    if not tcp:
        with socket.socket(_family(server), socket.SOCK_DGRAM) as client:
            client.settimeout(timeout)
            client.bind(("::" if ":" in server else "0.0.0.0", source_port))
            client.sendto(message, (server, 53))
            while True:
                data, source = client.recvfrom(65535)
                arrived_ns = time.monotonic_ns()
                if data[:2] == message[:2]:
                    return parse(data, arrived_ns, source[0])
    with socket.create_connection((server, 53), timeout=timeout) as client:
        client.sendall(struct.pack("!H", len(message)) + message)
        (length,) = struct.unpack("!H", _receive_exactly(client, 2))
        data = _receive_exactly(client, length)
        return parse(data, time.monotonic_ns(), client.getpeername()[0])


def _receive_exactly(client, count):
    data = b""
    while len(data) < count:
        part = client.recv(count - len(data))
        if not part:
            raise ConnectionError("the resolver closed the connection")
        data += part
    return data
