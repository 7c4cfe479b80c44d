"""What lies in the wheel and in the sdist, and what they say of themselves."""

import os
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

DIST = Path(os.environ["SSDSL_DIST"])
ASSETS = ("grammar/", "stdlib/", "examples/")


@pytest.fixture(scope="module")
def wheel() -> dict[str, bytes]:
    (path,) = DIST.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def sdist() -> dict[str, bytes]:
    (path,) = DIST.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive if member.isfile()}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_the_wheel_has_the_package_and_its_assets(wheel: dict[str, bytes], sdist: dict[str, bytes]) -> None:
    """All of them and nothing else, byte for byte: the sdist has the folders of the tree."""
    wanted = {f"ssdsl/_assets/{name}": data for name, data in sdist.items() if name.startswith(ASSETS)}
    wanted |= {name: data for name, data in sdist.items() if name.startswith("ssdsl/")}
    found = {name: data for name, data in wheel.items() if ".dist-info/" not in name}
    assert found.keys() == wanted.keys() and found == wanted
    for name in ("ssdsl/py.typed", "ssdsl/_assets/grammar/ssp.lark", "ssdsl/_assets/examples/megatron.ssp"):
        assert name in found
    assert any(name.startswith("ssdsl/_assets/stdlib/") for name in found)


def test_nothing_that_was_made_is_shipped(wheel: dict[str, bytes], sdist: dict[str, bytes]) -> None:
    for name in (*wheel, *sdist):
        assert not {"__pycache__", "build", "dist", "node_modules", ".venv"} & {*Path(name).parts[:-1]}, name


def test_the_sdist_has_what_a_reader_needs(sdist: dict[str, bytes]) -> None:
    needed = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "LICENSE", "Makefile")
    assert {*needed, "pyproject.toml", "docs/promise.md"} <= sdist.keys()
    own = Path(__file__)
    for path in own.parent.glob("*.py"):
        assert sdist[f"tests/release/smoke/{path.name}"] == path.read_bytes()
    assert "tests/release/release.py" in sdist


def test_the_metadata_is_valid(wheel: dict[str, bytes], sdist: dict[str, bytes]) -> None:
    (name,) = (name for name in wheel if name.endswith(".dist-info/METADATA"))
    about = Metadata.from_email(wheel[name], validate=True)  # raises for a field that an index would refuse
    assert about.name == "ssdsl" and about.description_content_type == "text/markdown"
    assert about.description == sdist["README.md"].decode()
    said = message_from_bytes(sdist["PKG-INFO"])
    assert said["Version"] == str(about.version)
    classifiers = about.classifiers or []
    assert "Typing :: Typed" in classifiers and "Programming Language :: Python :: 3.11" in classifiers
    assert about.license_expression == "Apache-2.0"


def test_every_dependency_has_bounds(wheel: dict[str, bytes]) -> None:
    (name,) = (name for name in wheel if name.endswith(".dist-info/METADATA"))
    for asked in Metadata.from_email(wheel[name]).requires_dist or []:
        signs = {bound.operator for bound in Requirement(str(asked)).specifier}
        assert signs == {">=", "<"}, asked
