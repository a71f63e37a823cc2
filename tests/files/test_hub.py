"""The Hugging Face cache by its layout, and a fetch from a small hub on this machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from satchel.base.errors import CacheError, DownloadError
from satchel.files import hub, store
from satchel.files.references import Repository

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "m-Q4_K_M.gguf": b"GGUF four",
    "m-Q8_0-00001-of-00002.gguf": b"GGUF one",
    "m-Q8_0-00002-of-00002.gguf": b"GGUF two",
    "README.md": b"# words",
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with one repository, laid out as huggingface_hub does: links to blobs."""
    folder = tmp_path / "hub" / "models--owner--my--repo"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "blobs").mkdir()
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    for name, data in FILES.items():
        (folder / "blobs" / name).write_bytes(data)
        (snapshot / name).symlink_to(Path("..", "..", "blobs", name))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SATCHEL_OFFLINE", "1")
    return folder


def test_a_cached_file_is_used_in_place(cache: Path) -> None:
    path = store.resolve("hf:owner/my--repo")
    assert path == cache / "snapshots" / COMMIT / "m-Q4_K_M.gguf"
    assert path.read_bytes() == FILES["m-Q4_K_M.gguf"]
    assert store.resolve("hf:owner/my--repo:q8_0").name == "m-Q8_0-00001-of-00002.gguf"
    assert [(m.reference, m.bytes) for m in store.list_models()] == [
        ("hf:owner/my--repo:m-Q4_K_M.gguf", 9),
        ("hf:owner/my--repo:m-Q8_0-00001-of-00002.gguf", 16),
    ]
    with pytest.raises(CacheError, match="other programs share"):
        store.remove("hf:owner/my--repo")
    assert path.exists()


def test_half_a_download_does_not_count(cache: Path, tmp_path: Path) -> None:
    (cache / "blobs" / "m-Q8_0-00002-of-00002.gguf").unlink()  # now a link to nothing
    wanted = Repository("owner/my--repo", "Q8_0")
    assert hub.find(tmp_path / "hub", wanted) is None
    assert len(store.list_models()) == 1
    (cache / "refs" / "main").unlink()
    assert hub.find(tmp_path / "hub", Repository("owner/my--repo", None)) is None


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r"pip install satchel\[hf\]"):
        hub.fetch(Repository("owner/repo", None))


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for."""

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        if self.path.startswith("/api/models/owner/repo/tree/main"):
            rows = [
                {"type": "file", "path": n, "size": len(d), "oid": "0"} for n, d in FILES.items()
            ]
            data, status = json.dumps(rows).encode(), 200
        elif self.path.startswith("/api/models/owner/repo"):
            siblings = [{"rfilename": n} for n in FILES]
            info = {"id": "owner/repo", "sha": COMMIT, "siblings": siblings}
            data, status = json.dumps(info).encode(), 200
        elif self.path.startswith("/owner/repo/resolve/") and name in FILES:
            data, status = FILES[name], 200
        else:
            data, status = b"{}", 404
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002  # its name


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


PULL = "import sys; from satchel.cli.main import main; sys.exit(main())"
REPORT = """import sys
from satchel.files.store import resolve
told = []
resolve(sys.argv[2], report=lambda done, total: told.append([done, total]))
print(told)
"""


def pull(
    reference: str, tmp_path: Path, code: str = PULL, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`satchel pull` in a process of its own: huggingface_hub reads HF_* once, when imported."""
    changes = {"HF_HOME": str(tmp_path / "hf"), "SATCHEL_CACHE": str(tmp_path / "cache")}
    return subprocess.run(
        [sys.executable, "-c", code, "pull", reference],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        | changes
        | environment,
    )


def test_fetching_and_then_without_a_network(endpoint: str, tmp_path: Path) -> None:
    done = pull("hf:owner/repo:Q8_0", tmp_path, HF_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.is_relative_to(tmp_path / "hf" / "hub")
    assert path.read_bytes() == b"GGUF one"
    assert path.with_name("m-Q8_0-00002-of-00002.gguf").read_bytes() == b"GGUF two"
    again = pull("hf:owner/repo:Q8_0", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert (again.returncode, again.stdout) == (0, done.stdout)


def test_what_the_hub_does_not_have(endpoint: str, tmp_path: Path) -> None:
    for reference, said in (
        ("hf:owner/other", "satchel: error: hf:owner/other: "),
        ("hf:owner/repo:Q2_K", "satchel: error: owner/repo has nothing for 'Q2_K'"),
    ):
        failed = pull(reference, tmp_path, HF_ENDPOINT=endpoint)
        assert failed.returncode == 1
        assert failed.stderr.splitlines()[-1].startswith(said)
        assert "Traceback" not in failed.stderr


def test_progress_is_told_in_bytes(endpoint: str, tmp_path: Path) -> None:
    done = pull("hf:owner/repo:Q8_0", tmp_path, REPORT, HF_ENDPOINT=endpoint)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told[-1] == [16, 16]
    assert told == sorted(told)
