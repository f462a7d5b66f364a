"""The protocol and the runtime are light: neither torch nor transformers comes with them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import importlib, pkgutil, sys
import {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    importlib.import_module(module.name)
heavy = {{name.partition(".")[0] for name in sys.modules}} & {{"torch", "transformers", "triton", "safetensors"}}
sys.exit(", ".join(heavy) or 0)
"""


@pytest.mark.parametrize("package", ["pageant.protocol", "pageant.actors.runtime"])
def test_importing_loads_neither_torch_nor_transformers(package):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(package=package)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
