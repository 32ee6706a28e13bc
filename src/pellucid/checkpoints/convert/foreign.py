"""Finds foreign files by what the user gave: a file, a folder, or the name of an installed package."""

import importlib.metadata
import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

from pellucid.checkpoints import installed, model_files
from pellucid.checkpoints.links import check_link, check_no_loop, path_inside, refuse_links_of_folder
from pellucid.errors import InputError, NotFoundError, join_names
from pellucid.paths import path_of

LICENCE_PATTERNS = ("LICEN[SC]E*", "NOTICE*", "COPYING*", "ATTRIBUTION*", "COPYRIGHT*")
"""Files that must be copied along with the weights."""

SENTENCE = model_files.CONFIG_FILES[1:]
"""The settings of sentence vectors: all but config.json, which is written anew."""

VOCABULARY_FILES = (
    "source_vocabulary.txt",
    "shared_vocabulary.txt",
    "source_vocabulary.json",
    "shared_vocabulary.json",
)

WEIGHT_FILES = ("model.safetensors", "model.bin")
"""The weight files of CTranslate2: repacked by name, or in its own format."""


@dataclass(frozen=True)
class ForeignModel:
    """kind: the format.  file: the one with the weights.  folder: with the other files.

    licences: licences and notices, by their names in the output.
    """

    kind: Literal["onnx", "ctranslate2"]
    file: Path
    folder: Path
    licences: dict[str, Path]


_IS_CHECKPOINT = "is a checkpoint, which opens directly: there is nothing to convert"


def find_foreign_model(name: str) -> ForeignModel:
    """The foreign model at `name`: an .onnx file, a folder, or an installed package that holds one."""
    if not name:
        raise InputError("the name of the model is empty, expected a file, a folder or a package")
    path = path_of(name)
    check_no_loop(path)
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            raise InputError(f"{name} {_IS_CHECKPOINT}")
        if path.suffix != ".onnx":
            is_weights = path.name in WEIGHT_FILES
            expected = "expected an .onnx file, or a folder with one or with CTranslate2's files"
            advice = f"give its folder, {path.parent}" if is_weights else expected
            raise InputError(f"{name} is {'one file of a model' if is_weights else 'not understood'}: {advice}")
        return _onnx(path)
    if path.is_dir():
        return _folder(path)
    return _package(name)


def _folder(folder: Path) -> ForeignModel:
    files = sorted(path for place in (folder, folder / "onnx") for path in place.glob("*.onnx") if path.is_file())
    if files:
        return _onnx(check_link(folder, _only_model(folder, files)))
    if any((folder / name).is_file() for name in VOCABULARY_FILES):
        refuse_links_of_folder(folder)
        weights = next((one for name in WEIGHT_FILES if (one := folder / name).is_file()), None)
        if weights is None:
            raise NotFoundError(f"{folder} has a vocabulary of CTranslate2 and no {' or '.join(WEIGHT_FILES)}")
        return ForeignModel("ctranslate2", weights, folder, _licence_files(folder))
    if model_files.form_of_folder(folder).adapter:
        whole = f'pellucid.load("{folder}").save("FOLDER")'
        raise InputError(f"{folder} holds an adapter, and nothing foreign: in Python, {whole} writes the whole model")
    raise NotFoundError(f"{folder} holds nothing to convert: no .onnx file, and no vocabulary of CTranslate2")


def _only_model(folder: Path, files: list[Path]) -> Path:
    """The only file, or the one in full precision."""
    plain = [path for path in files if path.name == "model.onnx"]
    if len(files) > 1 and len(plain) != 1:
        names = join_names(str(path.relative_to(folder)) for path in files)
        raise InputError(f"{folder} holds several models: name one of {names}")
    return plain[0] if plain else files[0]


def _onnx(file: Path) -> ForeignModel:
    folder = next((place for place in (file.parent, file.parent.parent) if (place / "config.json").is_file()), None)
    if folder is None:
        raise NotFoundError(f"{file.parent} has no config.json, which says what the model is")
    refuse_links_of_folder(folder)
    return ForeignModel("onnx", file, folder, _licence_files(folder))


def _package(name: str) -> ForeignModel:
    message = f"there is no file or folder {name[:200]!r}, and no installed package of that name"
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", name):
        raise NotFoundError(message)
    package = installed.find_package(name)
    if package is not None and package.path() is not None and not package.needs_conversion:
        raise InputError(f"{name} {_IS_CHECKPOINT}")
    try:
        files = importlib.metadata.files(package.distribution if package else name) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise NotFoundError(message) from error
    models = sorted(Path(str(file.locate())) for file in files if file.suffix == ".onnx")
    models = [path for path in models if path.is_file()]
    if not models:
        raise NotFoundError(f"the package {name} holds no .onnx file")
    return _onnx(_only_model(models[0].parents[1], models))


# -- files that are copied along ---------------------------------------------------------------------------------------


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """The files of the tokenizer and of sentence vectors, by name."""
    patterns = (*model_files.TOKENIZER_FILES, *model_files.OTHER_TOKENIZER_FILES, *SENTENCE, "chat_template.jinja")
    names = [
        path.name for path in folder.iterdir() if path.is_file() and model_files.any_matches([path.name], patterns)
    ]
    if not any(name in names for name in ("tokenizer.json", "vocab.txt", *model_files.OTHER_TOKENIZER_FILES)):
        raise NotFoundError(f"{folder} has no tokenizer: expected tokenizer.json or vocab.txt beside config.json")
    found = {name: path_inside(folder, name) for name in sorted(names)}
    return found | {f"{place}/config.json": folder / place / "config.json" for place in _module_folders(folder)}


def _module_folders(folder: Path) -> list[str]:
    return [path.parent.name for path in sorted(folder.glob("[0-9]_*/config.json")) if not path.parent.is_symlink()]


def _licence_files(folder: Path) -> dict[str, Path]:
    """Licences and notices of the folder, and of the package that it belongs to."""
    found = {path.name: path for path in sorted(folder.iterdir()) if _is_licence(path)}
    for package in _owning_packages(folder):
        for file in package.files or []:
            path = Path(str(file.locate()))
            if ".dist-info" in str(file) and _is_licence(path):
                found[path.name if path.name not in found else f"{path.name}.{package.name}"] = path
    return found


def _is_licence(path: Path) -> bool:
    return (
        path.is_file()
        and not path.is_symlink()
        and any(fnmatch(path.name.upper(), pattern) for pattern in LICENCE_PATTERNS)
    )


def _owning_packages(folder: Path) -> list[importlib.metadata.Distribution]:
    """The installed packages that a folder belongs to."""
    site = next((place for place in folder.resolve().parents if place.name in ("site-packages", "dist-packages")), None)
    if site is None:
        return []
    top = folder.resolve().relative_to(site).parts[0]
    return [importlib.metadata.distribution(name) for name in importlib.metadata.packages_distributions().get(top, [])]
