"""Satchel's server beside llama.cpp's, under one client, in turns in one run:

    python bench/serve_peers.py --llama-server PATH [MODEL] [flags of bench/load.py]

Both serve one file with as many threads, 16 contexts of the same size, and flash attention; what
one remembers of prompts does not help it, as no two begin alike. JSON lines, then a table.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import load

from satchel.files.store import resolve

COMMAND = [sys.executable, "-c", "import sys; from satchel.cli.main import main; sys.exit(main())"]
START_S = 120


def free_port() -> int:
    """A port that no one listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def is_healthy(port: int) -> bool:
    """Whether a server answers there, with its model loaded."""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@contextmanager
def running(command: list[str], port: int, environment: dict[str, str]) -> Generator[str]:
    """A server while it runs; its address."""
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment) as child,
    ):
        try:
            end = time.monotonic() + START_S
            while not is_healthy(port):
                if child.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    said = (log.read().strip().splitlines() or ["nothing"])[-1]
                    name = Path(command[0]).name
                    sys.exit(f"serve_peers: error: {name} does not start; it said: {said}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()


def main() -> int:
    """Starts both, loads both; 1 when any request failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--llama-server", type=Path, required=True, metavar="PATH")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-c", "--ctx-size", type=int, default=2048, help="of each context")
    parser.add_argument("--parallel", type=int, default=16)
    args, further = parser.parse_known_args()
    path = str(resolve(args.model))
    ours, theirs = free_port(), free_port()
    common = ["-t", str(args.threads), "-np", str(args.parallel)]
    satchel = [*COMMAND, "serve", path, "--port", str(ours), "-c", str(args.ctx_size), *common]
    # llama.cpp shares its context out among the answers; to keep prompts aside would only cost it
    # time here; its libraries may lie beside it
    whole = str(args.ctx_size * args.parallel)
    sizes = ["-c", whole, "-tb", str(args.threads), "-fa", "on", "--cache-ram", "0", *common]
    llama = [str(args.llama_server), "-m", path, "--port", str(theirs), *sizes]
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(args.llama_server.parent)}
    with running(satchel, ours, dict(os.environ)) as one, running(llama, theirs, libraries) as two:
        print(f"serve_peers: Satchel is {one}, llama.cpp is {two}", file=sys.stderr)
        return load.main(["--url", one, "--url", two, "--table", *further])


if __name__ == "__main__":
    sys.exit(main())
