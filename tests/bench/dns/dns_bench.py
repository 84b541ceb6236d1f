# SPDX-License-Identifier: Apache-2.0
"""scripts/bench dns: nsd alone, dnsmasq with nftset, and mapgate, in turn in one world. Every name that is asked for is
new to whoever is measured. Prints JSON lines; what people read goes to stderr."""

import json
import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import harness  # noqa: E402
import isolation  # noqa: E402

ROUNDS = 3
NAMES_PER_ROUND = 20000
SERIAL_ROUNDS = 9
SERIAL_NAMES_PER_ROUND = 1500
DNSMASQ = "192.0.2.54"
ZONE = "new.test"
# What a run without holding starts the daemon with.
NO_HOLD = ("--fault-inject", "no-hold")


def say(text):
    print(text, file=sys.stderr, flush=True)


def emit(case, value, unit, **more):
    print(json.dumps({"suite": "dns", "case": case, "value": round(value, 1), "unit": unit, **more}), flush=True)


class Names:
    """Hands out names that nobody was asked for yet."""

    def __init__(self, world, count):
        self._all = [f"n{index}.{ZONE}" for index in range(count)]
        self._used = 0
        for index, name in enumerate(self._all):
            world.resolver.add(name, f"A {harness.many_address(index)}", ttl=3600)

    def take(self, count):
        if self._used + count > len(self._all):
            raise ValueError("no names left")
        self._used += count
        return self._all[self._used - count : self._used]


def dnsperf(world, server, names, cgroup):
    """Queries per second over names that are asked for once each."""
    queries = world.folder / "queries"
    queries.write_text("".join(f"{name} A\n" for name in names))
    done = world.run("dnsperf", "-s", server, "-d", queries, "-n", "1", "-c", "10", "-q", "100", "-t", "5",
                     cgroup=cgroup, timeout=300).stdout
    completed = int(re.search(r"Queries completed:\s+(\d+)", done)[1])
    good = int(re.search(r"NOERROR (\d+)", done)[1])
    if completed != len(names) or good != len(names):
        raise AssertionError(f"{server}: of {len(names)} queries {completed} were answered, {good} well:\n{done}")
    return float(re.search(r"Queries per second:\s+([\d.]+)", done)[1])


def start_dnsmasq(world):
    """Forwards to nsd without a cache, and puts each address into an nftables set before it answers."""
    world.run("nft", "add table inet mapgate; add set inet mapgate addresses { type ipv4_addr; }")
    world.spawn(["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root",
                 "--pid-file=", f"--server={harness.RESOLVER}", f"--listen-address={DNSMASQ}", "--bind-interfaces",
                 "--cache-size=0", "--dns-forward-max=1000", f"--nftset=/{ZONE}/4#inet#mapgate#addresses"],
                cgroup="servers", log=world.folder / "dnsmasq.log")
    harness.wait_until(lambda: harness.answers(DNSMASQ), "dnsmasq answers")


def check_dnsmasq_filled_its_set(world, least):
    entries = len(re.findall(r"198\.\d+\.\d+\.\d+", world.run("nft", "list set inet mapgate addresses").stdout))
    if entries < least:
        raise AssertionError(f"dnsmasq's set has {entries} addresses, not {least}: the comparison would be unfair")


def restart_daemon(world, *flags):
    world.daemon.stop()
    world.daemon.start(*flags)


def spec(names):
    spec = harness.workload_spec([harness.allow_names(f"*.{ZONE}")])
    spec["node"] = {"maps": {"addresses": 2 * names}, "dns": {"maxAddressesPerWorkload": 2 * names}}
    return spec


def measure_throughput(world, names):
    qps = {"nsd": [], "dnsmasq": [], "mapgate": []}
    for turn in range(ROUNDS):
        fresh = names.take(NAMES_PER_ROUND)
        qps["nsd"].append(dnsperf(world, harness.RESOLVER, fresh, "servers"))
        qps["dnsmasq"].append(dnsperf(world, DNSMASQ, fresh, "servers"))
        qps["mapgate"].append(dnsperf(world, harness.RESOLVER, fresh, "web"))
        say(f"round {turn + 1}: " + ", ".join(f"{who} {values[-1]:.0f} q/s" for who, values in qps.items()))
    check_dnsmasq_filled_its_set(world, ROUNDS * NAMES_PER_ROUND)
    held = world.daemon.status()["dns"]["answers_released"]
    if held < ROUNDS * NAMES_PER_ROUND:
        raise AssertionError(f"mapgate held {held} answers only: the queries did not go through it")
    nsd, dnsmasq, mapgate = (statistics.median(qps[who]) for who in ("nsd", "dnsmasq", "mapgate"))
    emit("nsd_alone", nsd, "queries/s")
    emit("qps_new", mapgate, "queries/s", aim=2, peer=round(dnsmasq, 1), ratio=round(mapgate / dnsmasq, 2))


def serial(world, names):
    """Round trips in microseconds, one query at a time: (p50, p99)."""
    file = world.folder / "serial-names"
    file.write_text("".join(f"{name}\n" for name in names))
    done = world.run(harness.binary("dns_serial_client"), harness.RESOLVER, file, cgroup="web", timeout=120).stdout
    result = json.loads(done)
    return result["p50_us"], result["p99_us"]


def measure_serial(world, names):
    held, unheld = [], []
    for turn in range(SERIAL_ROUNDS):
        restart_daemon(world)
        held.append(serial(world, names.take(SERIAL_NAMES_PER_ROUND)))
        restart_daemon(world, *NO_HOLD)
        unheld.append(serial(world, names.take(SERIAL_NAMES_PER_ROUND)))
        say(f"round {turn + 1}: held p50 {held[-1][0]:.1f} us, p99 {held[-1][1]:.1f} us; "
            f"not held p50 {unheld[-1][0]:.1f} us, p99 {unheld[-1][1]:.1f} us")
    for index, case in enumerate(("serial_p50", "serial_p99")):
        value, peer = (statistics.median(run[index] for run in runs) for runs in (held, unheld))
        emit(case, value, "us", aim=1.3, peer=round(peer, 1), ratio=round(value / peer, 3))


def main():
    total = ROUNDS * NAMES_PER_ROUND + 2 * SERIAL_ROUNDS * SERIAL_NAMES_PER_ROUND
    with harness.World() as world:
        names = Names(world, total)
        world.resolver.publish()
        start_dnsmasq(world)
        world.daemon.start(spec=spec(total))
        measure_throughput(world, names)
        measure_serial(world, names)
    return 0


if __name__ == "__main__":
    sys.exit(isolation.contained(main))
