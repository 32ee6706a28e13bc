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
from tests import house, messages
from tests.conftest import tiny_config

LAWS: dict[Callable[[str, str], list[str]], tuple[str, str]] = {
    house.forward_imports: ("text/new.py", "def f():\n    from pellucid.models import Encoder\n"),
    house.misplaced_library_imports: ("tasks/new.py", "import faiss\n"),
    house.misplaced_torch_imports: ("config/new.py", "import torch\n"),
    house.misplaced_transformers_imports: ("tasks/new.py", "import transformers\n"),
    house.reference_tensor_names: ("trace/new.py", "name = 'bert.encoder.layer.0'\n"),
    messages.typed_options: ("tasks/new.py", 'raise InputError("too long: pass --long windows")\n'),
    messages.untyped_arguments: ("tasks/new.py", "raise InputError(f'{n} is too long: pass long={rule!r}')\n"),
    messages.unknown_arguments: ("tasks/new.py", "raise InputError('pass ', Argument('on_duplciate', 'skip'))\n"),
    house.misplaced_config_imports: ("blocks/new.py", "from pellucid.config import Config\n"),
    house.foreign_attribute_assignments: (
        "trace/new.py",
        "from pellucid.blocks.attention import Attention\nAttention.forward = None\n",
    ),
    house.tensors_without_device: ("tasks/new.py", "ids = torch.tensor([1, 2])\n"),
    house.raw_torch_context_managers: ("tasks/new.py", "with torch.no_grad():\n    pass\n"),
    house.too_long: ("view/new.py", "def f():\n" + "    pass\n" * 90),
    house.undocumented: ("view/new.py", "def open_page():\n    return 1\n"),
}
"""Every law, and a file that breaks it."""


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_source_keeps_every_law(law: Callable[[str, str], list[str]]) -> None:
    broken = [fault for path, text in house.files() for fault in law(path, text)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_law_finds_its_violation(law: Callable[[str, str], list[str]]) -> None:
    assert law(*LAWS[law])


def test_forward_imports_include_relative_and_plain_ones() -> None:
    assert house.forward_imports("text/new.py", "from ..models import Encoder\n")
    assert house.forward_imports("text/new.py", "import pellucid.models\n")
    assert house.forward_imports("text/new.py", "from pellucid import models\n")
    assert not house.forward_imports("models/new.py", "from pellucid.blocks import Attention\n")


@pytest.mark.parametrize(
    "text", ["pass out", "leave do_sample out", "leave dtype={dtype} out", "say with src_lang and tgt_lang"]
)
def test_argument_named_in_a_message_is_found(text: str) -> None:
    assert messages.untyped_arguments("tasks/new.py", f"raise InputError(f'too long: {text}')\n")
    assert not messages.untyped_arguments("cli/new.py", f"raise InputError(f'too long: {text}')\n")


@pytest.mark.parametrize("text", ["leave it out", "pass one of them", "choose another model", "give texts"])
def test_everyday_word_in_a_message_is_no_argument(text: str) -> None:
    assert not messages.untyped_arguments("tasks/new.py", f"raise InputError('too long: {text}')\n")


def test_architecture_lists_every_room_in_order() -> None:
    page = (house.ROOT.parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page.partition("| room |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(name.strip("` ") for row in rows for name in row.split(",")) == tuple(house.ORDER)


def test_facade_methods_are_short() -> None:
    assert not house.long_facade_methods((house.ROOT / "model.py").read_text(encoding="utf-8"))
    assert house.long_facade_methods("class Model:\n    def f(self):\n" + "        x = 1\n" * 4)


# -- one name for one thing -----------------------------------------------------------------------------------------


def test_module_paths_match_tensor_names_and_trace_points() -> None:
    from pellucid.config import MaskedLM

    model = pellucid.build(tiny_config(head=MaskedLM()))
    modules = dict(model.module.named_modules())
    for name in list(families()["bert"].names.body) + list(families()["bert"].page(MaskedLM()).rows):
        expected = name[1].replace("{i}", "0")
        assert expected in modules or expected in dict(model.module.named_parameters()) or expected == "pooler.dense", (
            expected
        )
    for part in ("query", "key", "value"):
        recorded = model_point(model, f"layers.1.attention.{part}")
        computed = modules[f"layers.1.attention.{part}"](model_point(model, "layers.1.residual.pre"))
        torch.testing.assert_close(recorded.transpose(1, 2).flatten(2), computed, rtol=0, atol=1e-6)


def test_first_head_of_every_family_page_is_none() -> None:
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
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return result.stdout.strip().endswith("True")


HELP = "from pellucid.cli.app import app\napp.main(['{}', '--help'], standalone_mode=False)"


def test_import_and_help_load_no_torch() -> None:
    assert not loads_torch(
        "import pellucid; pellucid.__version__; pellucid.Config; pellucid.InputError; pellucid.train_tokenizer"
    )
    assert not loads_torch("from pellucid.cli.app import app\napp.main(['--help'], standalone_mode=False)")
    assert not loads_torch(HELP.format("look"))


def test_load_does_import_torch() -> None:
    assert loads_torch("import pellucid; pellucid.load")


def test_import_opens_no_connection_and_changes_no_global_state() -> None:
    code = (
        "import sys, os, warnings, logging\n"
        "sys.addaudithook(lambda event, args: event == 'socket.connect' and sys.exit(3))\n"
        "before = dict(os.environ), list(warnings.filters), logging.getLogger().level\n"
        "import pellucid, pellucid.model, pellucid.view\n"
        "assert (dict(os.environ), list(warnings.filters), logging.getLogger().level) == before\n"
    )
    code = "import torch, huggingface_hub, tqdm.auto\n" + code
    subprocess.run([sys.executable, "-c", code], check=True)


def test_loading_the_api_imports_neither_generation_nor_explanations() -> None:
    code = "import sys, pellucid; pellucid.load; print([n for n in sys.modules if n.startswith(('ROOMS'))])"
    rooms = "pellucid.generation.texts', 'pellucid.generation.loop', 'pellucid.trace.explain."
    result = subprocess.run(
        [sys.executable, "-c", code.replace("ROOMS", rooms)], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["pellucid", "pellucid.generation", "pellucid.trace.explain"])
def test_lazy_imports_match_the_imports_for_type_checkers(name: str) -> None:
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    imports = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {one.asname: node.module for node in imports.body if isinstance(node, ast.ImportFrom) for one in node.names}
    modules = {one for one, home in typed.items() if home == name}
    assert {*package.__all__} - {"__version__"} == {*typed} - modules
    for one, home in typed.items():
        module = importlib.import_module(f"{home}.{one}" if one in modules else str(home))
        assert getattr(package, str(one)) in (module, getattr(module, str(one), None), pellucid.view)
    assert {*package.__all__} <= {*dir(package)}
    for missing in ("nothing", "_nothing", "not.hing"):
        with pytest.raises(AttributeError, match=missing):
            getattr(package, missing)


def test_modules_of_a_package_are_imported_on_access() -> None:
    code = "import pellucid.generation, pellucid.trace.explain as e; e.lens.logit_lens; pellucid.generation.rules"
    subprocess.run([sys.executable, "-c", code], check=True)


COLLECTOR_SCRIPT = """
import gc, torch

walks = []
gc.callbacks.append(lambda phase, info: walks.append(info["generation"]))
SETTING
before = gc.isenabled()
import pellucid
pellucid.NAME
print(max(walks, default=0), gc.isenabled() is before)
"""


@pytest.mark.parametrize(("name", "setting"), [("load", ""), ("load", "gc.disable()"), ("Index", "")])
def test_lazy_import_avoids_full_collections_and_restores_the_collector(name: str, setting: str) -> None:
    code = COLLECTOR_SCRIPT.replace("NAME", name).replace("SETTING", setting)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.split()[-1] == "True", result.stderr
    assert int(result.stdout.split()[0]) < 2
