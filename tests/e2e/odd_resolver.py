# SPDX-License-Identifier: Apache-2.0
"""A resolver that sends something false before the true answer; the question's first label says what:
   odd_resolver.py ADDRESS"""

import socket
import struct
import sys

import dns_message

TRUE_ADDRESS = "192.0.2.10"
FALSE_ADDRESS = "192.0.2.66"


def answer(query, address, name=None, identifier=None):
    """An answer to a query with one question, with one A record."""
    question = query[12:] if name is None else dns_message.encode_name(name) + query[-4:]
    header = (query[:2] if identifier is None else struct.pack("!H", identifier)) + struct.pack("!5H", 0x8180, 1, 1, 0, 0)
    record = struct.pack("!3HIH", 0xC00C, dns_message.A, 1, 60, 4) + socket.inet_aton(address)
    return header + question + record


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


def main():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((sys.argv[1], 53))
    while True:
        query, client = server.recvfrom(4096)
        what = query[13 : 13 + query[12]].decode()
        true = answer(query, TRUE_ADDRESS)
        for message in [*false_messages(what, query), true] + ([true] if what == "twice" else []):
            server.sendto(message, client)


if __name__ == "__main__":
    main()
