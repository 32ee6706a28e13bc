"""Converts foreign files into an ordinary checkpoint folder. Only this room uses other makers' tensor names."""

import os
from pathlib import Path
from typing import NamedTuple

from pellucid.checkpoints.convert.folder import check_target, write_folder
from pellucid.checkpoints.convert.foreign import find_foreign_model, tokenizer_files
from pellucid.files import file_errors, read_json
from pellucid.paths import path_of, path_text


class Converted(NamedTuple):
    """folder: the output.  tensors, numbers: how many."""

    folder: Path
    tensors: int
    numbers: int


def convert(
    name: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    heads: int | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Converted:
    """Converts the model in foreign files into a folder with config.json, model.safetensors and tokenizer.

    name: an .onnx file, a folder with one, an installed package that holds one, or a CTranslate2 folder.
    heads: number of attention heads, where the files do not give it.
    overwrite: whether to replace files in a folder that holds some.
    progress: None shows a bar at a terminal when it takes longer than a second.
    Raises: PellucidError, one sentence with everything that does not fit; then nothing was written.
    """
    target = path_of(folder)
    with file_errors():
        found = find_foreign_model(path_text(name))
        check_target(target, found.file, overwrite)
        if found.kind == "onnx":
            from pellucid.checkpoints.convert.encoder import read_encoder

            files = tokenizer_files(found.folder)
            tensors, config = read_encoder(found.file, read_json(found.folder / "config.json"), heads, progress)
        else:
            from pellucid.checkpoints.convert.ctranslate2 import read_transformer

            tensors, config, vocabulary = read_transformer(found.file, heads)
            files = vocabulary.tokenizer_files()
    write_folder(target, tensors, config, {**found.licences, **files})
    return Converted(target, len(tensors), sum(numbers.numel() for numbers in tensors.values()))
