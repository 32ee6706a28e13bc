"""Nothing in a checkpoint is ever run: payloads that would leave a trace are opened under an audit hook."""

import collections
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pellucid
from tests.checkpoints.builders import (
    NORM,
    PICKLED,
    Damage,
    convert_to_bin,
    save_bin,
    valid_checkpoint,
    vocabulary,
    with_config,
    with_file,
)
from tests.checkpoints.guarded_loading import load_guarded

pytestmark = pytest.mark.timeout(120)

CODE = """from pathlib import Path
Path(__file__).with_name("marker").touch()
class Model: pass
def run(): return Model()
"""


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.function, self.arguments


def saved(value: object, **settings: Any) -> Damage:
    return lambda folder: save_bin(value, folder / PICKLED, **settings)


# -- pickles -----------------------------------------------------------------------------------------------------------


def payloads(marker: Path) -> dict[str, Damage]:
    """Pickles that create `marker` when they are really unpickled."""
    shell = f"touch {marker}"
    script = f"open({str(marker)!r}, 'w')"
    calls = {
        "system": Call(os.system, shell),
        "popen": Call(os.popen, shell),
        "exec": Call(exec, script),
        "open": Call(open, str(marker), "w"),
        "eval inside": collections.OrderedDict({NORM: Call(eval, script)}),
    }
    damages = {name: saved({"a": call}) for name, call in calls.items()}
    old = {
        f"{name} in a bare pickle": saved({"a": calls[name]}, _use_new_zipfile_serialization=False) for name in calls
    }
    return damages | old | {name: raw_pickle(pickled) for name, pickled in hand_written_pickles(shell).items()}


def hand_written_pickles(shell: str) -> dict[str, bytes]:
    """Hand-written pickles that no Python object produces; the last one looks merely damaged at first."""
    command = b"X" + len(shell).to_bytes(4, "little") + shell.encode()
    return {
        "import": b"\x80\x02cpayload\nrun\n)R.",  # GLOBAL, EMPTY_TUPLE, REDUCE
        "connect": b"\x80\x02csocket\ncreate_connection\nU\x09127.0.0.1K\x09\x86\x85R.",
        "A26 twice": b"\x80\x02cpickle\nUnpicklingError\n)R0cposix\nsystem\n(" + command + b"tR.",
    }


def raw_pickle(pickled: bytes) -> Damage:
    """A `.bin` around a hand-written pickle."""

    def damage(folder: Path) -> None:
        with zipfile.ZipFile(folder / PICKLED, "w") as archive:
            archive.writestr("archive/data.pkl", pickled)
            archive.writestr("archive/version", "3\n")

    return damage


def test_no_pickle_runs(tmp_path: Path) -> None:
    (tmp_path / "payload.py").write_text(CODE)
    marker = tmp_path / "marker"
    folders = {}
    for i, (name, damage) in enumerate(payloads(marker).items()):
        folders[name] = convert_to_bin(valid_checkpoint(tmp_path / f"{i}"))
        damage(folders[name])
    for name, answer in zip(folders, load_guarded(*folders.values(), python_path=tmp_path), strict=True):
        assert answer.error == "UnsafeFileError", (name, answer)
        assert "was not opened" in answer.message or "never opened" in answer.message, name
        assert answer.events == [], name
        assert answer.seconds < 2, name
    assert not marker.exists()


def test_the_payloads_are_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really unpickled, they do have their effect: the test above can fail."""
    marker = tmp_path / "marker"
    (tmp_path / "payload.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    raw = hand_written_pickles(f"touch {marker}")
    for pickled in (pickle.dumps(Call(exec, f"open({str(marker)!r}, 'w').close()")), raw["import"], raw["A26 twice"]):
        pickle.loads(pickled)
        assert marker.exists()
        marker.unlink()
    with pytest.raises(ConnectionRefusedError):
        pickle.loads(raw["connect"])


def test_guard_notices_a_connection(tmp_path: Path) -> None:
    """The guard notices a connection that pellucid does make, so an empty list of events is evidence."""
    (answer,) = load_guarded(Path("nobody/nothing"))
    assert any("socket" in event for event in answer.events)


def test_zip_bomb_takes_no_memory(tmp_path: Path) -> None:
    folder = convert_to_bin(valid_checkpoint(tmp_path / "model"))
    bomb = zipfile.ZipFile(folder / PICKLED, "w", zipfile.ZIP_DEFLATED)
    with bomb, bomb.open("archive/data.pkl", "w") as entry:
        for _ in range(400):
            entry.write(bytes(1_000_000))
    assert (folder / PICKLED).stat().st_size < 500_000
    (answer,) = load_guarded(folder)
    assert answer.error == "UnsafeFileError"
    assert "compressed or overlapping entries" in answer.message
    assert answer.memory_growth < 50e6
    assert answer.seconds < 1


# -- configs -----------------------------------------------------------------------------------------------------------

CODE_KEYS = {
    "auto_map": {"AutoConfig": "payload.Config", "AutoModel": "payload.Model"},
    "_attn_implementation_internal": "evil/kernel",
    "_attn_implementation": "evil/kernel",
    "attn_implementation": "evil/kernel",
    "trust_remote_code": True,
    "custom_pipelines": {"x": {"impl": "payload.Model", "pt": ["AutoModel"]}},
}


def name_foreign_module(folder: Path) -> None:
    entry = {"idx": 0, "name": "0", "path": "", "type": "payload.Model"}
    with_file("modules.json", [entry])(folder)


def name_foreign_tokenizer(folder: Path) -> None:
    with_file("vocab.txt", "\n".join(vocabulary()))(folder)
    settings = {"tokenizer_class": "payload.Model", "auto_map": {"AutoTokenizer": ["payload.Model", "payload.Model"]}}
    with_file("tokenizer_config.json", settings)(folder)


def test_no_config_runs_code(tmp_path: Path) -> None:
    damages = [with_config(**{key: value}) for key, value in CODE_KEYS.items()]
    damages += [name_foreign_module, with_config(architectures=["payload.Model"]), name_foreign_tokenizer]
    folders = [valid_checkpoint(tmp_path / str(i)) for i in range(len(damages))]
    for damage, folder in zip(damages, folders, strict=True):
        damage(folder)
        (folder / "payload.py").write_text(CODE)
    (tmp_path / "payload.py").write_text(CODE)
    answers = load_guarded(*folders, python_path=tmp_path)
    assert [answer.events for answer in answers] == [[]] * len(folders)
    assert [answer.error for answer in answers] == [""] * len(CODE_KEYS) + ["UnsafeFileError", "", "InputError"]
    assert not list(tmp_path.rglob("marker"))


def test_a_saved_copy_names_no_code(tmp_path: Path) -> None:
    with_config(**CODE_KEYS, kept=1)(valid_checkpoint(tmp_path / "model"))
    pellucid.load(tmp_path / "model").save(tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["kept"] == 1
    assert config.keys().isdisjoint(CODE_KEYS)
