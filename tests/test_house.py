"""The laws of the house, and for each a proof that its test can fail."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid.checkpoints.families import families
from tests import house, sentences
from tests.conftest import tiny_config

LAWS: dict[Callable[[str, str], list[str]], tuple[str, str]] = {
    house.forward_imports: ("text/new.py", "def f():\n    from pellucid.models import Encoder\n"),
    house.wrong_doors: ("tasks/new.py", "import faiss\n"),
    house.torch_where_none_belongs: ("config/new.py", "import torch\n"),
    house.transformers_elsewhere: ("tasks/new.py", "import transformers\n"),
    house.reference_words: ("trace/new.py", "name = 'bert.encoder.layer.0'\n"),
    sentences.typed_options: ("tasks/new.py", 'raise InputError("too long: pass --long windows")\n'),
    sentences.untyped_arguments: ("tasks/new.py", "raise InputError(f'{n} is too long: pass long={rule!r}')\n"),
    sentences.unknown_arguments: ("tasks/new.py", "raise InputError('pass ', Argument('on_duplciate', 'skip'))\n"),
    house.readers_of_config: ("blocks/new.py", "from pellucid.config import Config\n"),
    house.attributes_set_on_strangers: (
        "trace/new.py",
        "from pellucid.blocks.attention import Attention\nAttention.forward = None\n",
    ),
    house.without_device: ("tasks/new.py", "ids = torch.tensor([1, 2])\n"),
    house.open_to_autocast: ("tasks/new.py", "with torch.no_grad():\n    pass\n"),
    house.too_long: ("view/new.py", "def f():\n" + "    pass\n" * 90),
    house.undocumented: ("view/new.py", "def open_page():\n    return 1\n"),
}
"""Every law, and a file that breaks it."""


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_the_house_keeps_its_laws(law: Callable[[str, str], list[str]]) -> None:
    broken = [fault for path, text in house.files() for fault in law(path, text)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_each_law_can_be_broken(law: Callable[[str, str], list[str]]) -> None:
    assert law(*LAWS[law])


def test_relative_and_plain_imports_count() -> None:
    assert house.forward_imports("text/new.py", "from ..models import Encoder\n")
    assert house.forward_imports("text/new.py", "import pellucid.models\n")
    assert house.forward_imports("text/new.py", "from pellucid import models\n")
    assert not house.forward_imports("models/new.py", "from pellucid.blocks import Attention\n")


@pytest.mark.parametrize(
    "said", ["pass out", "leave do_sample out", "leave dtype={dtype} out", "say with src_lang and tgt_lang"]
)
def test_an_argument_in_a_sentence_is_found(said: str) -> None:
    assert sentences.untyped_arguments("tasks/new.py", f"raise InputError(f'too long: {said}')\n")
    assert not sentences.untyped_arguments("cli/new.py", f"raise InputError(f'too long: {said}')\n")


@pytest.mark.parametrize("said", ["leave it out", "pass one of them", "choose another model", "give texts"])
def test_a_word_of_everyday_speech_is_no_argument(said: str) -> None:
    assert not sentences.untyped_arguments("tasks/new.py", f"raise InputError('too long: {said}')\n")


def test_the_map_names_every_room_in_order() -> None:
    said = (house.ROOT.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = said.partition("| room |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(name.strip("` ") for row in rows for name in row.split(",")) == tuple(house.ORDER)


def test_facade_methods_hand_over() -> None:
    assert not house.long_facade_methods((house.ROOT / "model.py").read_text(encoding="utf-8"))
    assert house.long_facade_methods("class Model:\n    def f(self):\n" + "        x = 1\n" * 4)


# -- one name for one thing -----------------------------------------------------------------------------------------


def test_the_path_of_a_module_is_its_name_in_tables_and_traces() -> None:
    from pellucid.config import MaskedLM

    model = pellucid.build(tiny_config(head=MaskedLM()))
    modules = dict(model.module.named_modules())
    for name in list(families()["bert"].names.body) + list(families()["bert"].page(MaskedLM()).rows):
        right = name[1].replace("{i}", "0")
        assert right in modules or right in dict(model.module.named_parameters()) or right == "pooler.dense", right
    for part in ("query", "key", "value"):
        seen = model_point(model, f"layers.1.attention.{part}")
        plain = modules[f"layers.1.attention.{part}"](model_point(model, "layers.1.residual.pre"))
        torch.testing.assert_close(seen.transpose(1, 2).flatten(2), plain, rtol=0, atol=1e-6)


def test_the_page_of_a_family_begins_with_the_model_without_a_head() -> None:
    assert [name for name, family in families().items() if family.heads[0].head is not None] == []


def model_point(model: "pellucid.Model", name: str) -> torch.Tensor:
    from pellucid.trace.record import Recorder

    recorder = Recorder((name,))
    model.module(torch.tensor([[1, 2, 3]]), observer=recorder)
    return recorder.recorded[name]


# -- light to import ------------------------------------------------------------------------------------------------


def loads_torch(code: str) -> bool:
    """Whether a fresh process has torch loaded after `code`."""
    check = f"import sys\n{code}\nprint('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return answer.stdout.strip().endswith("True")


HELP = "from pellucid.cli.app import app\napp.main(['{}', '--help'], standalone_mode=False)"


def test_import_and_help_load_no_torch() -> None:
    assert not loads_torch(
        "import pellucid; pellucid.__version__; pellucid.Config; pellucid.InputError; pellucid.train_tokenizer"
    )
    assert not loads_torch("from pellucid.cli.app import app\napp.main(['--help'], standalone_mode=False)")
    assert not loads_torch(HELP.format("look"))


def test_that_test_can_fail() -> None:
    assert loads_torch("import pellucid; pellucid.load")


def test_importing_touches_no_network_and_changes_nothing() -> None:
    code = (
        "import sys, os, warnings, logging\n"
        "sys.addaudithook(lambda event, args: event == 'socket.connect' and sys.exit(3))\n"
        "before = dict(os.environ), list(warnings.filters), logging.getLogger().level\n"
        "import pellucid, pellucid.model, pellucid.view\n"
        "assert (dict(os.environ), list(warnings.filters), logging.getLogger().level) == before\n"
    )
    code = "import torch, huggingface_hub, tqdm.auto\n" + code
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_start_imports_nothing_that_writes_or_explains() -> None:
    code = "import sys, pellucid; pellucid.load; print([n for n in sys.modules if n.startswith(('ROOMS'))])"
    rooms = "pellucid.generation.texts', 'pellucid.generation.loop', 'pellucid.trace.explain."
    done = subprocess.run(
        [sys.executable, "-c", code.replace("ROOMS", rooms)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["pellucid", "pellucid.generation", "pellucid.trace.explain"])
def test_what_is_imported_by_the_first_use_is_what_types_know(name: str) -> None:
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    known = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {one.asname: node.module for node in known.body if isinstance(node, ast.ImportFrom) for one in node.names}
    modules = {one for one, home in typed.items() if home == name}
    assert {*package.__all__} - {"__version__"} == {*typed} - modules
    for one, home in typed.items():
        wanted = importlib.import_module(f"{home}.{one}" if one in modules else str(home))
        assert getattr(package, str(one)) in (wanted, getattr(wanted, str(one), None), pellucid.view)
    assert {*package.__all__} <= {*dir(package)}
    for missing in ("nothing", "_nothing", "not.hing"):
        with pytest.raises(AttributeError, match=missing):
            getattr(package, missing)


def test_modules_of_a_package_are_there_when_they_are_asked_for() -> None:
    code = "import pellucid.generation, pellucid.trace.explain as e; e.lens.logit_lens; pellucid.generation.rules"
    subprocess.run([sys.executable, "-c", code], check=True)


RESTING = """
import gc, torch

walks = []
gc.callbacks.append(lambda phase, told: walks.append(told["generation"]))
SETTING
before = gc.isenabled()
import pellucid
pellucid.NAME
print(max(walks, default=0), gc.isenabled() is before)
"""


@pytest.mark.parametrize(("name", "setting"), [("load", ""), ("load", "gc.disable()"), ("Index", "")])
def test_what_is_imported_at_the_first_use_has_nobody_walk_over_torch_and_leaves_the_collector_as_it_was(
    name: str, setting: str
) -> None:
    code = RESTING.replace("NAME", name).replace("SETTING", setting)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "True", done.stderr
    assert int(done.stdout.split()[0]) < 2
