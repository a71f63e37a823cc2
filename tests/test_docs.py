"""What the pages say exists: files, names in files, commands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from satchel.cli.flags import COMMANDS
from satchel.cli.main import parse

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "satchel"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NAMED = re.compile(r"`([\w/]+\.py):(\w+)`")
PATH = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|md|toml|ll)|(?:[\w.-]+/)+[\w.-]*)`")
TWO_SCREENS = 110  # lines


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def names_in(path: Path) -> set[str]:
    """What a module defines at its top."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_names_in_files_exist(page: Path) -> None:
    for file, name in NAMED.findall(page.read_text(encoding="utf-8")):
        path = SOURCE / file if (SOURCE / file).exists() else ROOT / file
        assert path.exists(), f"{page_name(page)} names {file}"
        assert name in names_in(path), f"{page_name(page)} names {file}:{name}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_paths_exist(page: Path) -> None:
    for path in PATH.findall(page.read_text(encoding="utf-8")):
        places = (ROOT / path, SOURCE / path, ROOT / "docs" / path)
        assert any(place.exists() for place in places), f"{page_name(page)} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), f"{page_name(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_shown_are_understood(page: Path) -> None:
    for line in re.findall(
        r"^    satchel (.*?)(?:  +#.*)?$", page.read_text("utf-8"), re.MULTILINE
    ):
        words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
        assert parse(words).command in COMMANDS


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_pages_are_short(page: Path) -> None:
    assert len(page.read_text(encoding="utf-8").splitlines()) <= TWO_SCREENS


def test_the_tour_stops_often() -> None:
    assert len(NAMED.findall((ROOT / "docs" / "tour.md").read_text(encoding="utf-8"))) > 20
