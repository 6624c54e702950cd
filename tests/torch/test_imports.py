"""`import discover.torch` loads no jax; without PyTorch it says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)


def test_the_optimizers_for_pytorch_load_no_jax():
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")
    code = (
        "import sys, discover.torch; from discover.torch import *; "
        "opt = Discover([discover.torch._torch.nn.Parameter(discover.torch._torch.ones(2))], 0.1, 2); "
        "print('jax' in sys.modules, 'optax' in sys.modules)"
    )
    assert run(code).stdout.split() == ["False", "False"]


def test_without_pytorch_one_line_says_what_to_install():
    result = run("import sys; sys.modules['torch'] = None; import discover.torch")
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: discover.torch needs PyTorch")
    assert last.endswith("pip install 'discover-optim[torch]'")
