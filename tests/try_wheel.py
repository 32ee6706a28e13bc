"""make wheel: the wheel alone, in its own environment outside the checkout, draws a page and classifies a sentence.

PyTorch and the other requirements come from the environment that runs this, so nothing is installed twice; the package
itself must come from the wheel.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

MOST_BYTES = 3_000_000
ADAPTER = "checkpoints/packaged/sentiment-minilm"
REQUIRED_FILES = (
    "py.typed",
    "view/web/page.html",
    "view/web/app.js",
    f"{ADAPTER}/adapter_model.safetensors",
    f"{ADAPTER}/README.md",
)


def main(folder: str) -> None:
    (wheel,) = Path(folder).resolve().glob("pellucid-*.whl")
    assert wheel.stat().st_size < MOST_BYTES, f"{wheel.name} has {wheel.stat().st_size:,} bytes"
    names = zipfile.ZipFile(wheel).namelist()
    for needed in REQUIRED_FILES:
        assert f"pellucid/{needed}" in names, f"{wheel.name} lacks {needed}"
    with tempfile.TemporaryDirectory() as directory:
        os.environ.pop("PYTHONPATH", None)  # the caller's would take precedence over the wheel
        subprocess.run([sys.executable, "-m", "venv", f"{directory}/env"], check=True)
        python = Path(directory, "env", "Scripts" if sys.platform == "win32" else "bin", "python")
        install = [
            str(python),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--no-deps",
            str(wheel),
        ]
        subprocess.run(install, check=True)
        site_packages = Path(subprocess.check_output([str(python), "-c", _SITE], text=True).strip())
        (site_packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"])
        package_path = subprocess.check_output(
            [str(python), "-c", "import pellucid; print(pellucid.__file__)"], cwd=directory, text=True
        )
        assert directory in package_path, f"pellucid came from {package_path.strip()} and not from the wheel"
        look = [str(python), "-m", "pellucid", "look", "time flies like an arrow", "-o", "page.html"]
        subprocess.run(look, cwd=directory, check=True)
        assert Path(directory, "page.html").stat().st_size > 100_000
        classify = [str(python), "-m", "pellucid", "run", "sentiment-analysis", "I love glass"]
        output = subprocess.check_output(classify, cwd=directory, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        assert output.startswith("POSITIVE"), output
    sys.stdout.write(f"{wheel.name}: {wheel.stat().st_size:,} bytes, and it draws and classifies\n")


_SITE = "import sysconfig; print(sysconfig.get_paths()['purelib'])"

if __name__ == "__main__":
    main(sys.argv[1])
