# SPDX-License-Identifier: Apache-2.0
"""A resolver that misbehaves; the question's first label says how: odd_resolver.py ADDRESS"""

import socket
import struct
import sys
import threading
import time

import dns_message

TRUE_ADDRESS = "192.0.2.10"
FALSE_ADDRESS = "192.0.2.66"


def answer(query, address, name=None, identifier=None):
    """An answer to a query with one question, with one A record."""
    question = query[12:] if name is None else dns_message.encode_name(name) + query[-4:]
    header = (query[:2] if identifier is None else struct.pack("!H", identifier)) + struct.pack("!5H", 0x8180, 1, 1, 0, 0)
    record = struct.pack("!3HIH", 0xC00C, dns_message.A, 1, 60, 4) + socket.inet_aton(address)
    return header + question + record


def first_label(query):
    return query[13 : 13 + query[12]].decode()


def false_messages(what, query):
    identifier = struct.unpack("!H", query[:2])[0]
    false = answer(query, FALSE_ADDRESS)
    return {
        "wrong-id": [answer(query, FALSE_ADDRESS, identifier=(identifier + 1) & 0xFFFF)],
        "wrong-question": [answer(query, FALSE_ADDRESS, name="other.odd.test")],
        "garbage": [query[:2] + b"\xff" * 40],
        "cut": [false[:-3]],
        "query": [query],
    }.get(what, [])


def spoof(query, client):
    """From another port than was asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind((sys.argv[1], 0))
        other.sendto(answer(query, FALSE_ADDRESS), client)


def servfail(query):
    return query[:2] + struct.pack("!5H", 0x8182, 1, 0, 0, 0) + query[12:]


def serve_udp(server):
    while True:
        query, client = server.recvfrom(4096)
        what = first_label(query)
        if what == "silent":
            continue
        if what == "servfail":
            server.sendto(servfail(query), client)
            continue
        if what == "spoofed":
            spoof(query, client)
        true = answer(query, TRUE_ADDRESS)
        for message in [*false_messages(what, query), true] + ([true] if what == "twice" else []):
            server.sendto(message, client)


def send_in_pieces(connection, stream):
    for index in range(len(stream)):
        connection.sendall(stream[index : index + 1])
        time.sleep(0.002)


def serve_connection(connection):
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while length := connection.recv(2, socket.MSG_WAITALL):
            query = connection.recv(struct.unpack("!H", length)[0], socket.MSG_WAITALL)
            what = first_label(query)
            if what == "closes":
                return
            stream = b"".join(struct.pack("!H", len(message)) + message
                              for message in [*false_messages(what, query), answer(query, TRUE_ADDRESS)])
            if what == "pieces":
                send_in_pieces(connection, stream)
            else:
                connection.sendall(stream)


def serve_tcp(listener):
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_connection, args=(connection,), daemon=True).start()


def main():
    address = (sys.argv[1], 53)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(address)
    threading.Thread(target=serve_tcp, args=(socket.create_server(address),), daemon=True).start()
    serve_udp(server)


if __name__ == "__main__":
    main()
