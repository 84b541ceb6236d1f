# SPDX-License-Identifier: Apache-2.0
"""A resolver like that of a large object store: every answer has a few of very many addresses, for a short time:
   rotating_resolver.py LISTEN_ADDRESS TTL ADDRESSES_PER_ANSWER NETWORK COUNT"""

import ipaddress
import random
import socket
import struct
import sys

import dns_message


def answer(query, addresses, ttl):
    """For a query with one question and nothing else."""
    header = query[:2] + struct.pack("!5H", 0x8180, 1, len(addresses), 0, 0)
    records = [struct.pack("!3HIH", 0xC00C, dns_message.A, 1, ttl, 4) + address.packed for address in addresses]
    return header + query[12:] + b"".join(records)


def main():
    listen, ttl, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    first = ipaddress.IPv4Address(sys.argv[4])
    pool = [first + index for index in range(int(sys.argv[5]))]
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((listen, 53))
    while True:
        query, client = server.recvfrom(4096)
        (kind,) = struct.unpack("!H", query[-4:-2])
        server.sendto(answer(query, random.sample(pool, count) if kind == dns_message.A else [], ttl), client)


if __name__ == "__main__":
    main()
