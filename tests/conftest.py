"""Eight simulated devices for every test, and as little compiling as possible; set before jax starts."""

import gc
import os
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("busy", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("busy")

# Most of the time goes into compiling programs that run a few times; `make test-all` has flags for those that run long.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if metadata.version("jaxlib").startswith(("0.10.", "0.11.")):  # a version that does not know a flag would not start
    QUICK += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count=8 {os.environ.get('XLA_FLAGS', QUICK)}"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Every program is compiled once: for all test processes, for those that they start, and for the next run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "programs"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# A process that is killed while it writes there leaves a program that cannot be read, and jax compiles it again.
os.environ["PYTHONWARNINGS"] = "ignore:Error reading persistent compilation cache entry"

gc.set_threshold(50_000, 20, 50)  # tracing makes many objects that live on, and looking through them takes a tenth


CHROMIUM = [Path(f"/usr/bin/{name}") for name in ("chromium", "chromium-browser", "google-chrome")]
ALONE = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run"]
ALONE += ["disable-background-networking", "disable-component-update", "disable-sync"]


@pytest.fixture(scope="module")
def browser():
    """A real one, for the pages that people open."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(Path.exists, CHROMIUM), None)
    if path is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=[f"--{flag}" for flag in ALONE])
        yield browser
        browser.close()


def pytest_collection_modifyitems(items):
    """What takes minutes takes many of them on a busy machine, and ends when it hangs all the same."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600))
