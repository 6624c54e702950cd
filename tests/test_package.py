"""The package as others get it: metadata, wheel and sdist, quick to import, whole without the extras."""

import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import discover

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    "streaming": ["grain"],
    "sweep": ["optuna"],
    "page": ["altair", "vl_convert"],
    "tensorboard": ["tensorboardX"],
}


def run(*command, **options):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)


def test_the_version_is_the_same_everywhere():
    assert PROJECT["version"] == discover.__version__
    assert re.search(
        r"^## (Unreleased|" + re.escape(PROJECT["version"]) + ")", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_every_extra_is_declared_and_all_of_them_are_in_all():
    declared = PROJECT["optional-dependencies"]
    assert set(EXTRAS) <= set(declared)
    (everything,) = declared["all"]
    assert set(EXTRAS) == set(re.search(r"\[(.*)\]", everything)[1].split(","))


def test_what_is_installed_here_is_new_enough_for_what_is_declared():
    for requirement in PROJECT["dependencies"]:
        name, least = requirement.split(">=")
        installed = importlib.metadata.version(name)
        assert [int(n) for n in re.findall(r"\d+", installed)[:3]] >= [int(n) for n in least.split(".")], requirement


def test_importing_the_optimizers_takes_under_a_second_after_jax():
    code = (
        "import time, jax, optax, flax.nnx; start = time.perf_counter(); import discover; discover.discover; "
        "print(time.perf_counter() - start)"
    )
    seconds = [float(run(sys.executable, "-c", code, cwd=ROOT, check=True).stdout) for _ in range(2)]
    assert min(seconds) < 1.0


def test_without_any_extra_the_library_imports_and_the_commands_are_there():
    absent = [module for modules in EXTRAS.values() for module in modules]
    code = f"""
import sys
for name in {absent!r}:
    sys.modules[name] = None           # importing it now raises ImportError
import importlib, pkgutil, discover
for module in pkgutil.walk_packages(discover.__path__, "discover."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from discover.lab.cli import build_app
print(len(build_app().registered_commands))
"""
    result = run(sys.executable, "-c", code, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 5


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The wheel and the sdist, built from a copy so that nothing is left in the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    files = run("git", "ls-files", "-z", cwd=ROOT, check=True).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    result = run(sys.executable, "-m", "build", "--outdir", out, source)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built):
    wheel, _ = built
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"discover", f"discover_optim-{PROJECT['version']}.dist-info"}
    expected = {str(path.relative_to(ROOT)) for path in (ROOT / "discover").rglob("*.py")}
    assert expected | {"discover/py.typed"} == {name for name in names if name.startswith("discover/")}
    assert any(name.endswith("LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "# Discover" in metadata  # the README is the long description


@pytest.mark.slow
def test_the_sdist_holds_what_is_needed_to_build(built):
    _, sdist = built
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "discover/__init__.py", "discover/py.typed"} <= names


@pytest.mark.slow
def test_the_wheel_works_in_another_environment(built, tmp_path):
    """Its dependencies are borrowed from here; that they suffice is what CI on a clean machine shows."""
    wheel, _ = built
    venv.create(tmp_path / "env", with_pip=True)
    bin_ = tmp_path / "env" / "bin"
    run(bin_ / "python", "-m", "pip", "install", "--no-deps", "--no-index", wheel, check=True)
    paths = run(bin_ / "python", "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", check=True)
    (Path(paths.stdout.strip()) / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    assert "compare" in run(bin_ / "discover", "--help", cwd=tmp_path, check=True).stdout
    where = run(bin_ / "python", "-c", "import discover; print(discover.__file__)", cwd=tmp_path, check=True).stdout
    assert where.startswith(str(tmp_path))
    options = ("--optimizers", "momentum,discover", "--seeds", 1, "--set", "training.steps=20", "--out", "out")
    result = run(bin_ / "discover", "compare", "digits", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Discover" in result.stdout
