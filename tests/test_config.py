"""Configs by themselves."""

import subprocess
import sys


def test_a_config_without_the_families_says_where_to_take_it_from() -> None:
    code = "from pellucid.config import Config; Config.of('llama')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("take Config from pellucid itself, which reads their pages")
