"""The package as others get it: the library with jax, optax and numpy alone, and the command with its extra."""

import importlib.metadata
import os
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
from packaging.requirements import Requirement

import discover
from discover.__main__ import LAB

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = ("sweep", "page", "tensorboard", "parquet")
OPTIONAL_MODULES = ("optuna", "altair", "vl_convert", "tensorboardX")


def run(*command, **options):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, **{"env": environment, **options}
    )


def tracked_files(folder):
    return [name for name in run("git", "ls-files", "-z", folder, cwd=ROOT, check=True).stdout.split("\0") if name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy so that nothing is left in the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", *tracked_files("discover")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    result = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source)
    assert result.returncode == 0, result.stdout + result.stderr
    (found,) = out.glob("*.whl")
    return found


def needed_by(*names):
    """The installed distributions that these need, themselves included."""
    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found[name] = importlib.metadata.distribution(name)
            requirements = map(Requirement, found[name].requires or ())
            waiting += [one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found.values()


@pytest.fixture(scope="module")
def empty(wheel, tmp_path_factory):
    """An environment with the wheel, and what it says that it needs (linked from here, not copied)."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": folder}))
    for distribution in needed_by(*(Requirement(one).name for one in PROJECT["dependencies"])):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (packages / top).symlink_to(distribution.locate_file(top))
    # Without an index, so that anything else that the wheel asked for would be an error.
    result = run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-index", wheel)
    assert result.returncode == 0, result.stderr
    return folder


def readme_loop():
    """The code of the README that makes an optax loop a Discover loop."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if "group_value_and_grad" in block)


LIBRARY_ALONE = """
import importlib.util, sys
import jax, jax.numpy as jnp, numpy as np
from discover.registry import OPTIMIZERS
from discover.sharding import shard_by_parameter

params = {"kernel": jnp.ones((4, 2)), "bias": jnp.zeros(2)}
grads = jax.tree.map(lambda one: jnp.stack([one + 1, one - 2]), params)
clusters = discover.Clusters.uniform(3)

def step(tx):
    state = tx.init(params)
    updates, _ = jax.jit(tx.update)(grads, state, params, cluster_ids=jnp.array([0, 2]))
    assert jax.tree.all(jax.tree.map(lambda u, p: u.shape == p.shape and jnp.isfinite(u).all(), updates, params))

for optimizer in OPTIMIZERS.values():
    step(optimizer.make(0.1, *[clusters] * optimizer.clustered, **dict.fromkeys(optimizer.required, 0.1)))
mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
step(shard_by_parameter(discover.discover(0.1, clusters), mesh))
for name in discover.__all__:
    getattr(discover, name)
print(discover.__file__)
print(*(name for name in %r if importlib.util.find_spec(name)), *(name for name in sys.modules if ".lab" in name))
"""


def test_the_library_works_with_jax_optax_and_numpy_alone(empty, tmp_path):
    beyond = sorted({*LAB, *OPTIONAL_MODULES} - {"scipy"})  # which comes with jax
    result = run(empty / "bin" / "python", "-c", readme_loop() + LIBRARY_ALONE % (beyond,), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    where, others = result.stdout.splitlines()
    assert where.startswith(str(empty))
    assert others == ""


def test_importing_the_optimizers_takes_under_a_second_after_jax(empty, tmp_path):
    code = (
        "import time, jax, optax; start = time.process_time(); import discover; discover.discover; "
        "print(time.process_time() - start)"
    )
    assert float(run(empty / "bin" / "python", "-c", code, cwd=tmp_path, check=True).stdout) < 1.0


def test_the_command_without_its_extra_says_in_one_line_what_to_install(empty, tmp_path):
    for command in ([empty / "bin" / "discover", "compare"], [empty / "bin" / "python", "-m", "discover"]):
        result = run(*command, cwd=tmp_path)
        assert result.returncode == 2
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        assert "pip install 'discover-optim[lab]'" in result.stderr


def test_whichever_package_of_the_extra_is_missing_is_named(monkeypatch, capsys):
    from discover import __main__ as command

    for missing in LAB:
        monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == missing else object())  # noqa: B023
        with pytest.raises(SystemExit) as ended:
            command.main()
        assert ended.value.code == 2
        assert f"{missing} is not installed: pip install 'discover-optim[lab]'\n" in capsys.readouterr().err


def test_a_bug_of_the_laboratory_is_not_taken_for_a_missing_extra(monkeypatch):
    from discover import __main__ as command

    monkeypatch.setitem(sys.modules, "discover.lab.cli", None)
    with pytest.raises(ModuleNotFoundError, match=r"discover\.lab\.cli"):
        command.main()


def test_the_command_looks_for_everything_that_its_extra_brings():
    homes = importlib.metadata.packages_distributions()
    assert {home.lower() for name in LAB for home in homes[name] if home.lower() in " ".join(EXTRAS["lab"])} == {
        Requirement(one).name for one in EXTRAS["lab"]
    }


def test_what_only_the_laboratory_can_use_brings_the_laboratory():
    for extra in OPTIONAL:
        assert "discover-optim[lab]" in EXTRAS[extra]
    assert EXTRAS["all"] == [f"discover-optim[{','.join(OPTIONAL)}]"]


def test_without_the_optional_extras_every_module_imports_and_the_commands_are_there():
    code = f"""
import sys
for name in {OPTIONAL_MODULES!r}:
    sys.modules[name] = None           # importing it now raises ImportError
import importlib, pkgutil, discover
for module in pkgutil.walk_packages(discover.__path__, "discover."):
    if not module.name.startswith("discover.torch"):  # which needs its own extra, and says so: tests/torch
        importlib.import_module(module.name)
from discover.lab.cli import build_app
print(len(build_app().registered_commands))
"""
    result = run(sys.executable, "-c", code, env=os.environ, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) >= 5


def test_the_version_is_written_once_and_the_changelog_knows_it(wheel):
    assert PROJECT["dynamic"] == ["version"]
    assert wheel.name.startswith(f"discover_optim-{discover.__version__}-")
    assert re.search(rf"^## (Unreleased|{re.escape(discover.__version__)})", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert f"version: {discover.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_what_is_installed_here_is_new_enough_for_what_is_declared():
    for requirement in map(Requirement, [*PROJECT["dependencies"], *EXTRAS["lab"]]):
        assert importlib.metadata.version(requirement.name) in requirement.specifier, requirement


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    information = f"discover_optim-{discover.__version__}.dist-info/"
    assert {name for name in names if not name.startswith(information)} == set(tracked_files("discover"))
    assert any(name.endswith("LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "# Discover" in metadata  # the README is the long description


def test_the_files_that_the_guide_for_contributors_names_are_there():
    named = re.findall(r"`((?:discover|docs|tests)/[\w./]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_the_sdist_holds_what_is_needed_to_build(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", *tracked_files("discover")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", tmp_path, check=True)
    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", *tracked_files("discover")} <= names


@pytest.mark.slow
def test_both_doors_open_in_environments_of_their_own(wheel, tmp_path):
    """As a user installs it, from an index: the library, then the laboratory beside it."""
    venv.create(tmp_path / "env", with_pip=True)
    bin_ = tmp_path / "env" / "bin"
    run(bin_ / "python", "-m", "pip", "install", wheel, check=True)
    run(bin_ / "python", "-c", readme_loop(), cwd=tmp_path, check=True)
    assert "discover-optim[lab]" in run(bin_ / "discover", "compare", cwd=tmp_path).stderr
    run(bin_ / "python", "-m", "pip", "install", f"{wheel}[lab]", check=True)
    assert "compare" in run(bin_ / "discover", "--help", cwd=tmp_path, check=True).stdout
    options = ("--optimizers", "momentum,discover", "--seeds", 1, "--set", "training.steps=20", "--out", "out")
    result = run(bin_ / "discover", "compare", "digits", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Discover" in result.stdout
