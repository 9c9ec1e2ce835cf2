#!/usr/bin/env python3
"""Counts the atomic read-modify-writes of a request in convey, by function.

    benches/atomics.py target/release/convey [--mode http|proxy] [--requests N] [--json FILE]

It runs convey on two cores under valgrind (lackey), which traces each instruction and each
memory access of each thread. The table counts the locked instructions of the workers. One is
"shared" if another thread wrote its cache line, too, while the requests ran: then the line may have
to come from another core each time. The counts do not depend on the load of the machine.

In mode http, each request comes on a kept connection; in mode proxy, each opens a connection.
Needs valgrind, binutils, a C compiler, and a build with symbols (`cargo build --release`).
"""

import argparse
import bisect
import collections
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

LINE = 64
CONNECTIONS = 16
# Only workers execute functions of this crate.
WORKERS = "convey_upstream::"
BODY = b"x" * 1024
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 1024\r\n\r\n" + BODY
REQUEST = b"GET /k HTTP/1.1\r\nHost: a.example\r\n\r\n"
# convey needs time to start under valgrind.
PATIENCE = 120
# valgrind reserves these signals, so convey must not be told that it cannot have them.
SIGNALS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    int (*usual)(int, const struct sigaction *, struct sigaction *) = dlsym(RTLD_NEXT, "sigaction");
    return number >= 63 ? 0 : usual(number, action, old);
}
"""


def configuration(mode, port, servers):
    lines = ["[frontends.f]", f'listen_addr = "127.0.0.1:{port}"', f'mode = "{mode}"']
    lines += ['backend = "b"', "[backends.b]", 'health_check.kind = "none"']
    return "\n".join(lines + [f'servers.s{n}.addr = "127.0.0.1:{p}"' for n, p in enumerate(servers)])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve():
    """Starts an HTTP server, and returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def connection(client):
        received = b""
        while data := client.recv(65536):
            received += data
            while b"\r\n\r\n" in received:
                received = received.split(b"\r\n\r\n", 1)[1]
                client.sendall(RESPONSE)
        client.close()

    def accept():
        while True:
            threading.Thread(target=connection, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


def exchange(client):
    client.sendall(REQUEST)
    received = b""
    while b"\r\n\r\n" not in received or len(received.split(b"\r\n\r\n", 1)[1]) < len(BODY):
        data = client.recv(65536)
        if not data:
            sys.exit("convey closed the connection")
        received += data


class Load:
    """Clients that send one request after the other."""

    def __init__(self, mode, port):
        self.port, self.kept = port, []
        if mode == "http":
            self.kept = [self.connect() for _ in range(CONNECTIONS)]

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def run(self, requests):
        for n in range(requests):
            if self.kept:
                exchange(self.kept[n % len(self.kept)])
            else:
                with self.connect() as client:
                    exchange(client)


class Trace(threading.Thread):
    """Reads the trace of valgrind from a pipe, and keeps the part while `keeps` is set."""

    def __init__(self, path, kept):
        super().__init__(daemon=True)
        self.path, self.kept, self.keeps = path, kept, threading.Event()

    def run(self):
        with open(self.path, "rb", buffering=0) as trace, open(self.kept, "wb") as kept:
            while chunk := trace.read(1 << 20):
                if self.keeps.is_set():
                    kept.write(chunk)


def locked_instructions(binary):
    """Addresses of the instructions that read, modify and write memory atomically, and of fences."""
    code = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", binary], capture_output=True, text=True, check=True
    )
    locked, fences = set(), set()
    for line in code.stdout.splitlines():
        found = re.match(r"\s*([0-9a-f]+):\s+(\S+)\s*(.*)", line)
        if not found:
            continue
        address, name, operands = int(found[1], 16), found[2], found[3]
        if name == "lock" or name == "xchg" and "(" in operands:
            locked.add(address)
        elif name == "mfence":
            fences.add(address)
    return locked, fences


def functions(binary):
    """Sorted addresses and names of the functions."""
    names = subprocess.run(["nm", "-C", "--defined-only", binary], capture_output=True, text=True, check=True)
    found = (line.split(" ", 2) for line in names.stdout.splitlines())
    return sorted((int(at, 16), name) for at, kind, name in found if kind in "tTwW")


def await_listener(convey, port):
    for _ in range(PATIENCE):
        if convey.poll() is not None:
            sys.exit("convey has ended")
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(1)
    sys.exit("convey does not listen")


def load_address(pid, binary):
    real = os.path.realpath(binary)
    for line in open(f"/proc/{pid}/maps"):
        fields = line.split()
        if len(fields) > 5 and os.path.realpath(fields[5]) == real:
            return int(fields[0].split("-")[0], 16) - int(fields[2], 16)
    sys.exit("convey is not mapped")


def analyse(kept, base, locked, fences, of_workers):
    """Executions of locked instructions by workers: their addresses, whether several threads write
    the cache line, and their number. Threads that enter functions `of_workers` are workers."""
    writers, accesses = collections.defaultdict(set), collections.Counter()
    thread, pending, workers = None, None, set()
    schedule = re.compile(rb"SCHED\[(\d+)\]")
    for line in open(kept, "rb"):
        kind = line[:2]
        if kind == b"I ":
            at = int(line[2:].split(b",")[0], 16) - base
            pending = at if at in locked else None
            if at in of_workers:
                workers.add(thread)
            if at in fences:
                accesses[(thread, at, None)] += 1
        elif kind in (b" S", b" M", b" L"):
            place = int(line[2:].split(b",")[0], 16) // LINE
            if kind != b" L":
                writers[place].add(thread)
            if pending is not None:
                accesses[(thread, pending, place)] += 1
                pending = None
        elif found := schedule.search(line):
            thread = int(found[1])
    of_threads = ((thread, at, len(writers[place]) > 1, n) for (thread, at, place), n in accesses.items())
    return [(at, is_shared, n) for thread, at, is_shared, n in of_threads if thread in workers]


def name_of(names, at):
    place = bisect.bisect_right(names, (at, "\x7f")) - 1
    name = re.sub(r"::h[0-9a-f]{16}$", "", names[place][1]) if place >= 0 else "?"
    return re.sub(r"\.llvm\.\d+", "", name)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("binary")
    options.add_argument("--mode", choices=["http", "proxy"], default="http")
    options.add_argument("--requests", type=int, default=200)
    options.add_argument("--json", help="also write the counts to this file")
    options = options.parse_args()
    locked, fences = locked_instructions(options.binary)
    names = functions(options.binary)
    folder = tempfile.mkdtemp(prefix="atomics-")
    port, servers = free_port(), [serve(), serve()]
    pipe, kept, config = (os.path.join(folder, name) for name in ("pipe", "kept", "config/convey.toml"))
    os.mkfifo(pipe)
    os.mkdir(os.path.dirname(config)) # convey watches the folder of its configuration
    with open(config, "w") as file:
        file.write(configuration(options.mode, port, servers))
    valgrind = ["valgrind", "--tool=lackey", "--trace-mem=yes", "--trace-sched=yes", f"--log-file={pipe}"]
    command = valgrind + [options.binary, "--config", config, "--socket", os.path.join(folder, "socket")]
    signals = os.path.join(folder, "signals.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", signals, "-x", "c", "-"], input=SIGNALS.encode(), check=True)
    trace = Trace(pipe, kept)
    trace.start()
    convey = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "LD_PRELOAD": signals})
    try:
        await_listener(convey, port)
        load = Load(options.mode, port)
        load.run(4 * CONNECTIONS)
        base = load_address(convey.pid, options.binary)
        trace.keeps.set()
        load.run(options.requests)
        trace.keeps.clear()
    finally:
        convey.send_signal(signal.SIGKILL)
        convey.wait()
    trace.join()
    of_workers = {at for at, name in names if WORKERS in name}
    counts = collections.defaultdict(lambda: [0.0, 0.0])
    for at, is_shared, n in analyse(kept, base, locked, fences, of_workers):
        of = counts[name_of(names, at)]
        of[0] += n / options.requests
        of[1] += n / options.requests if is_shared else 0
    shutil.rmtree(folder)
    rows = sorted(counts.items(), key=lambda row: (-row[1][1], -row[1][0]))
    total = [sum(row[1][n] for row in rows) for n in (0, 1)]
    print(f"| locked | shared | function |\n|---:|---:|---|\n| {total[0]:.1f} | {total[1]:.1f} | all |")
    for name, (every, shared) in rows:
        if every >= 0.05:
            print(f"| {every:.1f} | {shared:.1f} | `{name}` |")
    if options.json:
        json.dump({name: of for name, of in rows}, open(options.json, "w"), indent=1)


main()
