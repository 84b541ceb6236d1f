# SPDX-License-Identifier: Apache-2.0
"""Runs inside a workload's cgroup and does what it is told, one JSON command a line on stdin, one JSON result a line
on stdout, so that a test need not start a process for each connection."""

import dataclasses
import errno
import json
import os
import random
import socket
import sys
import time

import dns_message


def outcome(error):
    if isinstance(error, socket.gaierror):
        return f"gaierror {error.errno}"
    if isinstance(error, TimeoutError):
        return "timeout"
    return errno.errorcode.get(error.errno, str(error))


def mutate(chance, message):
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(0, 1400))
    if kind == 1:
        return message[: chance.randrange(len(message) + 1)]
    changed = bytearray(message)
    for _ in range(chance.randrange(1, 6)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed) + (chance.randbytes(chance.randrange(64)) if kind == 3 else b"")


class Agent:
    def __init__(self):
        self.kept = {}

    def ask(self, name, server, kind=dns_message.A, timeout=3.0, tcp=False, source_port=0):
        return dataclasses.asdict(dns_message.ask(name, server, kind, timeout, tcp, source_port))

    def resolve(self, name, port=80):
        """The C library's resolver, and how long it took."""
        started = time.monotonic()
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        return {"addresses": [entry[4][0] for entry in found], "seconds": time.monotonic() - started}

    def connect(self, host, port, timeout=3.0, keep=None):
        """Connects a TCP socket to an address or a name; `keep` names the connection for `talk`."""
        started = time.monotonic()
        client = socket.create_connection((host, port), timeout=timeout)
        if keep is None:
            client.close()
        else:
            self.kept[keep] = client
        return {"seconds": time.monotonic() - started}

    def talk(self, keep, text="ping"):
        """Sends on a kept connection to the echo port and waits for the echo."""
        self.kept[keep].sendall(text.encode())
        return {"echo": self.kept[keep].recv(4096).decode()}

    def connect_repeatedly(self, host, port, seconds):
        """Connects and closes all the time; counts how each attempt ended. The pause keeps it from using up the ports:
        a SYN on a port whose last connection the server has not closed yet is sent again, whatever the policy."""
        deadline = time.monotonic() + seconds
        return self._connect_while(host, port, lambda: time.monotonic() < deadline)

    def connect_until(self, host, port, stop):
        """The same until there is a file of this name."""
        return self._connect_while(host, port, lambda: not os.path.exists(stop))

    def _connect_while(self, host, port, goes_on):
        outcomes = {}
        while goes_on():
            ended = "ok"
            try:
                socket.create_connection((host, port), timeout=3.0).close()
            except OSError as error:
                ended = outcome(error)
            outcomes[ended] = outcomes.get(ended, 0) + 1
            time.sleep(0.001)
        return {"outcomes": outcomes}

    def resolve_and_connect_at(self, name, port, per_second, seconds):
        """Resolves the name and connects to the first address, so many times a second."""
        outcomes = {}
        started = time.monotonic()
        for turn in range(per_second * seconds):
            time.sleep(max(0.0, started + turn / per_second - time.monotonic()))
            ended = "ok"
            try:
                address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][4]
                with socket.create_connection(address, timeout=3.0):
                    pass
            except OSError as error:
                ended = outcome(error)
            outcomes[ended] = outcomes.get(ended, 0) + 1
        return {"outcomes": outcomes}

    def ask_each(self, names, server):
        """Asks for one name after another: how each ended."""
        rcodes = {}
        for name in names:
            try:
                rcodes[name] = dns_message.ask(name, server).rcode
            except TimeoutError:
                rcodes[name] = "timeout"
        return {"rcodes": rcodes}

    def send_raw_udp(self, server, messages):
        """Sends messages (hex) to port 53, and reports how many answers came within a moment."""
        with socket.socket(socket.AF_INET6 if ":" in server else socket.AF_INET, socket.SOCK_DGRAM) as client:
            for message in messages:
                client.sendto(bytes.fromhex(message), (server, 53))
            client.settimeout(0.3)
            answers = 0
            try:
                while client.recv(65535):
                    answers += 1
            except TimeoutError:
                pass
        return {"answers": answers}

    def send_mutated_udp(self, server, messages, count, seed):
        """Sends `count` messages (hex) to port 53, each with octets changed, cut or added at random, from sockets that
        come and go."""
        chance = random.Random(seed)
        messages = [bytes.fromhex(message) for message in messages]
        for turn in range(count):
            if turn % 500 == 0:
                client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.sendto(mutate(chance, chance.choice(messages)), (server, 53))
        return {}

    def send_raw_tcp(self, server, stream):
        """Sends bytes (hex) on a TCP connection to port 53 and closes it."""
        with socket.create_connection((server, 53), timeout=3.0) as client:
            client.sendall(bytes.fromhex(stream))
        return {}

    def send_udp(self, host, port, text="ping", timeout=1.0):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.settimeout(timeout)
            client.sendto(text.encode(), (host, port))
            return {"echo": client.recv(4096).decode()}


def main():
    agent = Agent()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            result = getattr(agent, command.pop("do"))(**command)
            result["outcome"] = "ok"
        except OSError as error:
            result = {"outcome": outcome(error)}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
