# SPDX-License-Identifier: Apache-2.0
"""What scripts/demo shows: one workload, one rule, the real kernel. With --json the last line is one object."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time

import harness
import isolation

NAME = "api.example.com"
ADDRESS = "192.0.2.10"
UNRELATED = "docs.example.com"
POLICY_MAP = "mg_addresses"


class Story:
    """What a person reads."""

    def __init__(self, colour):
        self._bold, self._dim, self._good, self._plain = (
            ("\033[1m", "\033[2m", "\033[32m", "\033[0m") if colour else ("",) * 4)
        self._step = 0

    def title(self, text):
        print(f"{self._bold}{text}{self._plain}", flush=True)

    def step(self, text):
        self._step += 1
        print()
        self.title(f"{self._step}. {text}")

    def line(self, text=""):
        print(f"   {text}".rstrip(), flush=True)

    def command(self, text):
        print(f"   {self._dim}$ {text}{self._plain}", flush=True)

    def time(self, microseconds, text):
        print(f"   {microseconds:>10.1f} us  {text}", flush=True)

    def good(self, text):
        print(f"   {self._good}{text}{self._plain}", flush=True)


class MapWatch:
    """A process that looks into the kernel's map until it has an address; independent of the daemon."""

    def __init__(self, world, workload, address):
        self._process = world.spawn(
            [harness.binary("map_watch"), world.daemon.pinned_map(POLICY_MAP), workload, address], cgroup="servers",
            stdout=subprocess.PIPE, text=True)
        if self._process.stdout.readline() != "watching\n":
            raise AssertionError("map_watch did not start")

    def seen_ns(self):
        output, _ = self._process.communicate(timeout=harness.DEADLINE)
        if self._process.returncode != 0:
            raise AssertionError(f"{ADDRESS} did not appear in the kernel's map")
        return int(output)


def spec(*names):
    return harness.workload_spec([harness.allow_names(*names, ports=((80, "TCP"),))])


def build_world(world, story):
    world.resolver.add(NAME, f"A {ADDRESS}")
    world.resolver.add(UNRELATED, "A 192.0.2.20")
    world.resolver.publish()
    world.start_servers()
    world.daemon.start(spec=spec(NAME, UNRELATED))
    story.title(f"mapgate on Linux {platform.release()}")
    story.line()
    story.line(f"The world:    a network namespace with nsd at {harness.RESOLVER} and web servers on every other address")
    story.line(f"The workload: cgroup /web; may talk to {NAME} and {UNRELATED}, TCP port 80, and to nothing else")


def show_held_answer(world, story):
    """A query whose answer is held; returns its times in microseconds since it arrived, and its revision."""
    story.step("The workload asks for a name. Its answer is held until the kernel has the address.")
    watch = MapWatch(world, world.daemon.workload()["id"], ADDRESS)
    query = ["dig", "+short", "+tries=1", f"@{harness.RESOLVER}", NAME, "A"]
    story.command(" ".join(query))
    answer = world.run(*query, cgroup="web").stdout.strip()
    story.line(answer)
    if answer != ADDRESS:
        raise AssertionError(f"dig printed {answer!r}")
    map_ns = watch.seen_ns()
    record = next(record for record in world.daemon.json("answers")["answers"] if record["name"] == NAME)
    since = {what: (ns - record["query_arrived_ns"]) / 1000 for what, ns in (
        ("upstream", record["upstream_answered_ns"]), ("commit", record["committed_ns"]), ("map", map_ns),
        ("watermark", record["realised_ns"]), ("release", record["sent_ns"]))}
    story.line()
    events = [
        (0.0, f"the query for {NAME} reached the proxy"),
        (since["upstream"], f"nsd answered {ADDRESS}; the answer is held"),
        (since["commit"], f"the row is in the table: revision {record['revision']}"),
        (since["map"], f"the kernel's map has {ADDRESS}  (seen by a process that looks into the map)"),
        (since["watermark"], f"the watermark passed revision {record['revision']}: the gate opens"),
        (since["release"], "the answer left"),
    ]
    for microseconds, text in sorted(events, key=lambda event: event[0]):
        story.time(microseconds, text)
    if not since["map"] < since["release"]:
        raise AssertionError("the answer left before the kernel's map had the address")
    return since, record["revision"]


def show_allowed(world, story):
    story.step("It connects, and the first SYN gets through.")
    before = world.counters("TCPSynRetrans")
    command = ["curl", "--silent", "--show-error", "--max-time", "5",
               "--write-out", "HTTP %{http_code}, connected in %{time_connect} s", f"http://{NAME}/"]
    story.command(f"curl http://{NAME}/")
    done = world.run(*command, cgroup="web", check=False)
    for line in (done.stdout + done.stderr).splitlines():
        story.line(line)
    retransmitted = world.counters("TCPSynRetrans")["TCPSynRetrans"] - before["TCPSynRetrans"]
    story.line(f"retransmitted SYNs: {retransmitted}")
    return done.returncode == 0 and "HTTP 200" in done.stdout and retransmitted == 0


def show_denied(agent, story):
    story.step("Everything else is refused at once: an address that it never resolved.")
    story.command(f"connect {harness.NEVER_RESOLVED}:80")
    outcome = agent.connect(harness.NEVER_RESOLVED, 80)["outcome"]
    story.line(outcome)
    return outcome


def show_map(world, story):
    story.step("What the kernel holds.")
    story.command(f"bpftool map dump pinned {world.daemon.pinned_map(POLICY_MAP)}")
    dump = world.run("bpftool", "map", "dump", "pinned", world.daemon.pinned_map(POLICY_MAP)).stdout
    for line in dump.rstrip().splitlines():
        story.line(line)


def show_revoked(world, agent, story):
    """Takes the name out of the spec; whether its row left the kernel and a new connection was refused."""
    story.step(f"{NAME} is taken out of the spec.")
    story.command("kill -HUP $(pidof mapgated)")
    started = time.monotonic()
    world.daemon.reload(spec(UNRELATED))
    harness.wait_until(lambda: ADDRESS not in world.daemon.kernel_addresses(), "the row left the kernel's map", interval=0.001)
    story.time((time.monotonic() - started) * 1e6, f"the kernel's map no longer has {ADDRESS}")
    story.command(f"connect {ADDRESS}:80")
    outcome = agent.connect(ADDRESS, 80)["outcome"]
    story.line(outcome)
    return outcome == "EPERM"


def play(world, story):
    build_world(world, story)
    agent = world.agent()
    since, revision = show_held_answer(world, story)
    result = {
        "revision": revision,
        "commit_us": round(since["commit"], 1),
        "map_us": round(since["map"], 1),
        "release_us": round(since["release"], 1),
        "allowed": show_allowed(world, story),
        "denied": show_denied(agent, story),
    }
    show_map(world, story)
    result["revoked"] = show_revoked(world, agent, story)
    return result


def show(as_json):
    story = Story(colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ)
    try:
        with harness.World() as world:
            result = play(world, story)
    except AssertionError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    well = result["allowed"] and result["denied"] == "EPERM" and result["revoked"]
    print()
    if well:
        story.good("All as it should be. Nothing of this stays on the machine.")
    else:
        story.line("Something is wrong.")
    if as_json:
        print(json.dumps(result))
    return 0 if well else 1


def main():
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Shows on this machine's kernel what mapgate does.")
    parser.add_argument("--json", action="store_true", help="print a JSON object as the last line")
    arguments = parser.parse_args()
    return isolation.contained(lambda: show(arguments.json))


if __name__ == "__main__":
    sys.exit(main())
