# SPDX-License-Identifier: Apache-2.0
"""scripts/bench maps, the daemon's part: how long it takes to start on a map of a million declared rows that are right
already, beside a bare dump of that map, and what a row costs it in memory. Prints JSON lines; what people read goes to
stderr."""

import json
import pathlib
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import harness  # noqa: E402
import isolation  # noqa: E402

ROWS = 1_000_000
RUNS = 3
POLL = 0.002
PATIENCE = 120


def say(text):
    print(text, file=sys.stderr, flush=True)


def emit(case, value, unit, **more):
    print(json.dumps({"suite": "maps", "case": case, "value": round(value, 4), "unit": unit, **more}), flush=True)


def spec(pin, lines):
    declared = {"name": "million", "pin": str(pin), "prune": lines is not None,
                "layout": {"key": {"network": "u64", "host": "u64"}, "value": "u64"},
                "create": {"type": "hash", "maxEntries": ROWS + ROWS // 4, "flags": ["BPF_F_NO_PREALLOC"]}}
    return {"formatVersion": 1, "maps": [{**declared, "entriesFrom": str(lines)} if lines else declared]}


def write_lines(path):
    with open(path, "w", encoding="ascii") as file:
        for index in range(ROWS):
            file.write(f'{{"key": {{"network": {index // 250}, "host": {index}}}, "value": {index % 7}}}\n')


def status(daemon):
    """What GET /v1/status says, without the cost of a process; None while nobody answers."""
    request = b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(daemon.socket))
            client.sendall(request)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    except OSError:
        return None
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def start(world):
    """Starts the daemon and returns the seconds until its map is in sync, and its status then."""
    daemon = world.daemon
    begun = time.monotonic()
    daemon.process = world.spawn(daemon.command(), cgroup="node", log=daemon.log)
    while time.monotonic() - begun < PATIENCE:
        if daemon.process.poll() is not None:
            raise AssertionError(f"mapgated ended:\n{daemon.log_text()}")
        found = status(daemon)
        if found and found["spec"]["state"] == "applied" and found["declared_maps"][0]["state"] == "in sync":
            return time.monotonic() - begun, found["declared_maps"][0]
        time.sleep(POLL)
    raise AssertionError("the map does not come in sync")


def bare_dump(world, pin):
    done = json.loads(world.run(harness.binary("bare_dump"), pin).stdout)
    if done["entries"] != ROWS:
        raise AssertionError(f"the map has {done['entries']} entries")
    return done["seconds"]


def resident_bytes(process):
    for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def measure_restart(world, pin):
    starts, dumps = [], []
    for run in range(RUNS):
        dumps.append(bare_dump(world, pin))
        seconds, declared = start(world)
        if (declared["written"], declared["resync"]["adopted"]) != (0, ROWS):
            raise AssertionError(f"the daemon did not adopt the map: {declared}")
        world.daemon.stop()
        starts.append(seconds)
        say(f"run {run + 1}: start {seconds:.3f} s, dump {dumps[-1]:.3f} s")
    value, peer = statistics.median(starts), statistics.median(dumps)
    emit("restart_1m", value, "s", aim="<= 2", peer=f"lookup_batch dump: {peer:.4f} s", ratio=round(value / peer, 2))


def measure_memory(world, pin, lines):
    world.daemon.write_spec(spec(pin, None))
    start(world)
    empty = resident_bytes(world.daemon.process)
    world.daemon.stop()
    world.daemon.write_spec(spec(pin, lines))
    start(world)
    full = resident_bytes(world.daemon.process)
    world.daemon.stop()
    say(f"resident: {empty / 2**20:.1f} MiB without rows, {full / 2**20:.1f} MiB with {ROWS}")
    emit("row_memory", (full - empty) / ROWS, "bytes", aim="<= 160")


def main():
    with harness.World() as world:
        pin = world.bpffs.parent / "million"
        lines = world.folder / "million.jsonl"
        write_lines(lines)
        world.daemon.write_spec(spec(pin, lines))
        seconds, _ = start(world)
        say(f"filled in {seconds:.3f} s")
        world.daemon.stop()
        measure_restart(world, pin)
        measure_memory(world, pin, lines)
    return 0


if __name__ == "__main__":
    sys.exit(isolation.contained(main))
