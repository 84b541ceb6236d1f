# SPDX-License-Identifier: Apache-2.0
"""The world that workloads talk to: HTTP on ports 80 and 443, echo on port 7 (TCP and UDP), all addresses of the
network namespace, IPv4 and IPv6. Prints "ready" when it listens."""

import asyncio
import socket

BODY = b"hello from the world\n"
HTTP_PORTS = (80, 443)
ECHO_PORT = 7
BACKLOG = 4096


async def serve_http(reader, writer):
    try:
        while (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve_echo(reader, writer):
    try:
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


class UdpEcho(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


def dual_stack_socket(kind, port):
    server = socket.socket(socket.AF_INET6, kind)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    server.bind(("::", port))
    return server


async def main():
    loop = asyncio.get_running_loop()
    for port in HTTP_PORTS:
        await asyncio.start_server(serve_http, sock=dual_stack_socket(socket.SOCK_STREAM, port), backlog=BACKLOG)
    await asyncio.start_server(serve_echo, sock=dual_stack_socket(socket.SOCK_STREAM, ECHO_PORT), backlog=BACKLOG)
    await loop.create_datagram_endpoint(UdpEcho, sock=dual_stack_socket(socket.SOCK_DGRAM, ECHO_PORT))
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
