# SPDX-License-Identifier: Apache-2.0
"""scripts/bench dns: what holding answers costs, beside dnsmasq with and without nftset, and beside mapgate that does not
hold. Every name that is asked for is new to whoever is measured. Prints JSON lines; what people read goes to stderr."""

import json
import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import harness  # noqa: E402
import isolation  # noqa: E402

ZONE = "new.test"
NAMES = 100_000  # of a round of throughput
ROUNDS = 3
SERIAL_NAMES = 1500
SERIAL_ROUNDS = 9
ROWS = 1_000_000  # of a map that has nothing to do with DNS
STORMS = 3
STORM_NAMES = 40_000
HOURS = 24
NAMES_PER_HOUR = 10_000
NEIGHBOURS = 9
NOISE = 20_000  # denied queries a second
NEIGHBOUR_NAMES = 500
NEIGHBOUR_PAUSE_US = 5000
NEIGHBOUR_ROUNDS = 5

DNSMASQ = "192.0.2.54"  # with nftset
FORWARDER = "192.0.2.55"  # without
# What a run without holding starts the daemon with.
NO_HOLD = ("--fault-inject", "no-hold")


def say(text):
    print(text, file=sys.stderr, flush=True)


def emit(case, value, unit, **more):
    print(json.dumps({"suite": "dns", "case": case, "value": round(value, 1), "unit": unit, **more}), flush=True)


def emit_ratio(case, value, unit, peer, aim):
    emit(case, value, unit, aim=aim, peer=round(peer, 1), ratio=round(value / peer, 3))


class Names:
    """Hands out names that nobody was asked for yet, each with an address of its own."""

    def __init__(self, world, count):
        self._count = count
        self._used = 0
        for index in range(count):
            world.resolver.add(self._name(index), f"A 10.{index >> 16}.{(index >> 8) & 255}.{index & 255}", ttl=86400)
        world.resolver.publish()

    @staticmethod
    def _name(index):
        return f"n{index}.{ZONE}"

    def take(self, count):
        if self._used + count > self._count:
            raise ValueError("no names left")
        self._used += count
        return [self._name(index) for index in range(self._used - count, self._used)]


def percentile(samples, part):
    return sorted(samples)[round(part * (len(samples) - 1))]


def spec(pairs=None, workloads=("web",), maps=()):
    """Workloads that may resolve everything in the zone; `pairs`: the limit of each."""
    allowed = harness.allow_names(f"*.{ZONE}")
    all_of_them = [{"name": name, "selector": {"cgroup": f"/{name}"}, "egress": [allowed]} for name in workloads]
    result = {"formatVersion": 1, "policy": {"workloads": all_of_them}, "maps": list(maps)}
    if pairs is not None:
        result["node"] = {"maps": {"addresses": 2 * pairs}, "dns": {"maxAddressesPerWorkload": pairs}}
    return result


def restart(world, *flags, **named):
    world.daemon.stop()
    world.daemon.start(*flags, **named)


# --- Throughput ---


def dnsperf_command(world, server, names, *more):
    queries = world.folder / "queries"
    queries.write_text("".join(f"{name} A\n" for name in names))
    return ["dnsperf", "-s", server, "-d", queries, "-c", "10", "-q", "100", "-t", "5", *more]


def dnsperf(world, server, names, cgroup):
    """Queries per second over names that are asked for once each."""
    done = world.run(*dnsperf_command(world, server, names, "-n", "1"), cgroup=cgroup, timeout=300).stdout
    completed = int(re.search(r"Queries completed:\s+(\d+)", done)[1])
    good = int(re.search(r"NOERROR (\d+)", done)[1])
    if completed != len(names) or good != len(names):
        raise AssertionError(f"{server}: of {len(names)} queries {completed} were answered, {good} well:\n{done}")
    return float(re.search(r"Queries per second:\s+([\d.]+)", done)[1])


def start_dnsmasq(world, address, *more):
    """Forwards to nsd without a cache."""
    world.spawn(["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--user=root",
                 "--pid-file=", f"--server={harness.RESOLVER}", f"--listen-address={address}", "--bind-interfaces",
                 "--cache-size=0", "--dns-forward-max=1000", *more], cgroup="servers",
                log=world.folder / f"dnsmasq-{address}.log")
    harness.wait_until(lambda: harness.answers(address), "dnsmasq answers")


def check_dnsmasq_filled_its_set(world):
    listed = world.run("nft", "--json", "list set inet mapgate addresses", timeout=300).stdout
    entries = next(len(item["set"].get("elem", [])) for item in json.loads(listed)["nftables"] if "set" in item)
    if entries < NAMES:
        raise AssertionError(f"dnsmasq's set has {entries} addresses, not {NAMES}: the comparison would be unfair")
    world.run("nft", "flush set inet mapgate addresses")


def measure_throughput(world, names):
    world.run("nft", "add table inet mapgate; add set inet mapgate addresses { type ipv4_addr; }")
    start_dnsmasq(world, DNSMASQ, f"--nftset=/{ZONE}/4#inet#mapgate#addresses")
    start_dnsmasq(world, FORWARDER)
    servers = {"nsd": (harness.RESOLVER, "servers"), "nftset": (DNSMASQ, "servers"),
               "forward": (FORWARDER, "servers"), "mapgate": (harness.RESOLVER, "web")}
    qps = {who: [] for who in servers}
    for turn in range(ROUNDS):
        fresh = names.take(NAMES)
        for who, (server, cgroup) in servers.items():
            qps[who].append(dnsperf(world, server, fresh, cgroup))
        check_dnsmasq_filled_its_set(world)
        say(f"round {turn + 1}: " + ", ".join(f"{who} {values[-1]:.0f} q/s" for who, values in qps.items()))
    held = world.daemon.status()["dns"]["answers_released"]
    if held < ROUNDS * NAMES:
        raise AssertionError(f"mapgate held {held} answers only: the queries did not go through it")
    median = {who: statistics.median(values) for who, values in qps.items()}
    emit("nsd_alone", median["nsd"], "queries/s")
    emit_ratio("qps_new", median["mapgate"], "queries/s", median["nftset"], ">= 4")
    emit_ratio("qps_new_forward", median["mapgate"], "queries/s", median["forward"], ">= 1")


# --- Round trips, one query at a time ---


def begin_serial(world, names, cgroup, *more):
    file = world.folder / f"serial-{cgroup}"
    file.write_text("".join(f"{name}\n" for name in names))
    return [harness.binary("dns_serial_client"), harness.RESOLVER, file, *more]


def serial(world, names):
    """Round trips in microseconds."""
    return json.loads(world.run(*begin_serial(world, names, "web"), cgroup="web", timeout=120).stdout)


def measure_serial(world, names):
    held, unheld = [], []
    for turn in range(SERIAL_ROUNDS):
        for flags, runs in (((), held), (NO_HOLD, unheld)):
            restart(world, *flags)
            trips = serial(world, names.take(SERIAL_NAMES))
            runs.append([percentile(trips, part) for part in (0.5, 0.99)])
        say(f"round {turn + 1}: p50 and p99 held {held[-1]}, not held {unheld[-1]} us")
    for index, case in enumerate(("serial_p50", "serial_p99")):
        value, peer = (statistics.median(run[index] for run in runs) for runs in (held, unheld))
        emit_ratio(case, value, "us", peer, "<= 1.25")


# --- Beside a million unrelated rows ---


def million_rows(world, salt):
    """A map that the daemon makes and fills."""
    lines = world.folder / f"rows-{salt}.jsonl"
    with open(lines, "w", encoding="ascii") as file:
        for index in range(ROWS):
            file.write(f'{{"key": {index}, "value": {index + salt}}}\n')
    return {"name": "million", "pin": str(world.bpffs.parent / "million"), "layout": {"key": "u64", "value": "u64"},
            "create": {"type": "hash", "maxEntries": ROWS + ROWS // 4}, "entriesFrom": str(lines)}


def written_rows(world):
    declared = world.daemon.status()["declared_maps"]
    return declared[0]["written"] if declared and declared[0]["state"] == "in sync" else None


def wait_for_rows(world):
    harness.wait_until(lambda: written_rows(world) is not None, "the million rows are in the kernel", timeout=120)


def measure_beside_rows(world, names, pairs):
    rows = [million_rows(world, salt) for salt in range(2)]
    alone, beside = [], []
    for turn in range(SERIAL_ROUNDS):
        restart(world, spec=spec(pairs))
        alone.append(percentile(serial(world, names.take(SERIAL_NAMES)), 0.99))
        restart(world, spec=spec(pairs, maps=rows[:1]))
        wait_for_rows(world)
        beside.append(percentile(serial(world, names.take(SERIAL_NAMES)), 0.99))
        say(f"round {turn + 1}: p99 {beside[-1]:.1f} us beside {ROWS} rows, {alone[-1]:.1f} us without")
    emit_ratio("serial_p99_1m", statistics.median(beside), "us", statistics.median(alone), "<= 1.1")
    storms = [storm(world, names, spec(pairs, maps=[rows[turn % 2]])) for turn in range(1, STORMS + 1)]
    emit("storm_p99", statistics.median(storms), "us", aim="<= 3000")


def storm(world, names, to):
    """p99 of the round trips while every one of the million rows is written again."""
    before = written_rows(world)
    world.daemon.reload(to)
    trips = []
    while (written_rows(world) or 0) < before + ROWS:
        if len(trips) >= STORM_NAMES:
            raise AssertionError("the rows are not written")
        trips += serial(world, names.take(500))
    p99 = percentile(trips, 0.99)
    say(f"storm: {len(trips)} round trips, p99 {p99:.1f} us, the longest {max(trips):.1f} us")
    return p99


# --- Memory ---


def resident_kib(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1])


def measure_memory(world, names):
    """A day's fresh names, one hour after the other without the time in between: with TTLs of a day only the limits make
    names go, and that is when there is most to keep. The limits are those of a daemon that was told nothing."""
    sizes, full_at = [], None
    for hour in range(HOURS):
        dnsperf(world, harness.RESOLVER, names.take(NAMES_PER_HOUR), "web")
        sizes.append(resident_kib(world.daemon.process))
        # Evicted names are remembered, too, up to a limit of their own.
        if full_at is None and hour * NAMES_PER_HOUR >= 16384 + 65536:
            full_at = hour
    say(f"resident after each hour: {', '.join(str(size) for size in sizes)} KiB; limits reached in hour {full_at + 1}")
    if not world.daemon.status()["names"]["evicted"]:
        raise AssertionError("no name was evicted: the limits were not reached")
    emit_ratio("memory_24h", sizes[-1], "KiB", sizes[full_at], "<= 1.02")


# --- A loud neighbour ---


def measure_neighbour(world, names, workloads):
    loud, quiet_ones = workloads[0], workloads[1:]

    def round_trips():
        clients = [world.spawn(begin_serial(world, names.take(NEIGHBOUR_NAMES), cgroup, NEIGHBOUR_PAUSE_US), cgroup=cgroup,
                               stdout=harness.subprocess.PIPE, text=True) for cgroup in quiet_ones]
        return [trip for client in clients for trip in json.loads(client.communicate(timeout=120)[0])]

    quiet, noisy, rates = [], [], []
    denied = [f"d{index}.denied.test" for index in range(1000)]
    for turn in range(NEIGHBOUR_ROUNDS):
        quiet.append(percentile(round_trips(), 0.99))
        noise = world.spawn(dnsperf_command(world, harness.RESOLVER, denied, "-Q", str(NOISE * 21 // 20), "-l", "600"), cgroup=loud,
                            stdout=harness.subprocess.PIPE, text=True)
        noisy.append(percentile(round_trips(), 0.99))
        noise.send_signal(harness.signal.SIGINT)
        rates.append(float(re.search(r"Queries per second:\s+([\d.]+)", noise.communicate(timeout=30)[0])[1]))
        say(f"round {turn + 1}: p99 {quiet[-1]:.1f} us alone, {noisy[-1]:.1f} us beside {rates[-1]:.0f} denied q/s")
    emit("neighbour_noise", statistics.median(rates), "queries/s", aim=f">= {NOISE}")
    emit_ratio("neighbour_p99", statistics.median(noisy), "us", statistics.median(quiet), "<= 2")


def main():
    total = ROUNDS * NAMES + 2 * SERIAL_ROUNDS * SERIAL_NAMES
    with harness.World() as world:
        names = Names(world, total)
        world.daemon.start(spec=spec(total))
        measure_throughput(world, names)
        measure_serial(world, names)
    with harness.World() as world:
        total = 2 * SERIAL_ROUNDS * SERIAL_NAMES + STORMS * STORM_NAMES
        names = Names(world, total)
        measure_beside_rows(world, names, total)
    with harness.World() as world:
        names = Names(world, HOURS * NAMES_PER_HOUR)
        world.daemon.start(spec=spec())
        measure_memory(world, names)
    with harness.World() as world:
        workloads = [f"w{index}" for index in range(NEIGHBOURS + 1)]
        names = Names(world, 2 * NEIGHBOUR_ROUNDS * NEIGHBOURS * NEIGHBOUR_NAMES)
        world.daemon.start(spec=spec(workloads=workloads), cgroups=workloads)
        measure_neighbour(world, names, workloads)
    return 0


if __name__ == "__main__":
    sys.exit(isolation.contained(main))
