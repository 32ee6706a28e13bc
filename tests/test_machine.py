"""The machine: how much memory is still free, and which dtypes it has."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid import cgroups, machine, streams
from pellucid.checkpoints import fill
from pellucid.compat import AutoModel
from pellucid.errors import InputError, ResourceError
from pellucid.training.classification import TextClassification
from pellucid.training.learner import Learner
from pellucid.training.settings import Settings
from tests.cli.command_runner import command_runner
from tests.conftest import tiny_config
from tests.search.child_processes import exit_code_of


@pytest.fixture
def control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group of its own in a temporary folder."""
    (group_file := tmp_path / "own").write_text("0::/\n")
    monkeypatch.setattr(cgroups, "OWN", group_file)
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    monkeypatch.setattr(machine, "_available_memory", lambda: 5000)
    return tmp_path


def test_cached_files_count_as_free_memory(control_group: Path) -> None:
    """Cached file pages count as used in a control group, but the system frees them when memory is needed."""
    (control_group / "memory.max").write_text("1000\n")
    (control_group / "memory.current").write_text("900\n")
    assert machine.free_memory() == 100
    (control_group / "memory.stat").write_text("anon 100\nactive_file 50\ninactive_file 700\n")
    assert machine.free_memory() == 800


@pytest.mark.parametrize("limit", [None, "max", "9000"])
def test_control_group_without_limit_leaves_the_machines_memory(limit: str | None, control_group: Path) -> None:
    if limit is not None:
        (control_group / "memory.max").write_text(limit)
        (control_group / "memory.current").write_text("10")
    assert machine.free_memory() == 5000


SYSTEMD_GROUP = "0::/system.slice/job\n"
OLDER_GROUPS = "4:memory:/docker/job\n3:cpu,cpuacct:/docker/job\n0::/\n"


@pytest.mark.parametrize(
    ("group_file", "files", "free", "cores"),
    [
        (
            SYSTEMD_GROUP,
            {"system.slice/job": {"memory.max": "1000", "memory.current": "900", "cpu.max": "250 100"}},
            100,
            2,
        ),
        (SYSTEMD_GROUP, {"system.slice": {"memory.max": "1000", "memory.current": "900", "cpu.max": "50 100"}}, 100, 1),
        (
            SYSTEMD_GROUP,
            {
                "system.slice": {"memory.max": "4000", "memory.current": "3950", "cpu.max": "200 100"},
                "system.slice/job": {"memory.max": "1000", "memory.current": "900", "cpu.max": "max 100"},
            },
            50,
            2,
        ),
        (
            SYSTEMD_GROUP,
            {"system.slice/other": {"memory.max": "1000", "memory.current": "900", "cpu.max": "1 1"}},
            5000,
            8,
        ),
        (
            OLDER_GROUPS,
            {
                "memory/docker/job": {"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "950"},
                "memory": {"memory.limit_in_bytes": f"{2**63 - 4096}", "memory.usage_in_bytes": "4000"},
                "cpu/docker/job": {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
                "cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
            },
            50,
            3,
        ),
        (  # a container that sees only its own group, but is told its path on the host
            OLDER_GROUPS,
            {
                "memory": {
                    "memory.limit_in_bytes": "1000",
                    "memory.usage_in_bytes": "950",
                    "memory.stat": "inactive_file 1\ntotal_inactive_file 30\n",
                },
                "cpu": {"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"},
            },
            80,
            3,
        ),
    ],
)
def test_every_enclosing_control_group_limits_memory_and_cores(
    group_file: str,
    files: dict[str, dict[str, str]],
    free: int,
    cores: int,
    control_group: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (control_group / "own").write_text(group_file)
    for folder, texts in files.items():
        (control_group / folder).mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (control_group / folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert (machine.free_memory(), machine.available_cores()) == (free, cores)


ADDRESS_LIMIT_SCRIPT = """
import resource
from pellucid import machine
machine._available_memory = lambda: 2**50
most = 2**35
resource.setrlimit(resource.RLIMIT_AS, (most, most))
first = machine.free_memory()
allocated = bytearray(2**28)
print(0 < first < most, first - machine.free_memory() >= 2**28)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of addresses as Linux has it")
def test_address_space_limit_counts() -> None:
    result = subprocess.run([sys.executable, "-c", ADDRESS_LIMIT_SCRIPT], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "True"]


def test_failed_allocation_raises_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: pellucid.Model
) -> None:
    with pytest.raises(ResourceError, match=r"this model needs 44\.71 MiB more of memory"), machine.memory_errors():
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 46881792 bytes.")
    with (
        pytest.raises(ResourceError, match=r"this model needs 1048576\.00 GiB more of memory"),
        machine.memory_errors(),
    ):
        torch.empty(2**50, dtype=torch.uint8)
    with pytest.raises(ResourceError, match="needs more of memory"), machine.memory_errors():
        raise RuntimeError("std::bad_alloc")
    with pytest.raises(ResourceError, match="needs more of memory"), machine.memory_errors():
        bytearray(2**50)
    with pytest.raises(RuntimeError, match="must match"), machine.memory_errors():
        torch.ones(2) + torch.ones(3)
    folder = tiny.save(tmp_path / "model")
    monkeypatch.setattr(fill, "allocate", lambda *_: torch.empty(2**50))
    monkeypatch.setattr(sys.modules["pellucid.models.assemble"], "allocate", lambda *_: torch.empty(2**50))
    for call in (
        lambda: pellucid.load(folder),
        lambda: pellucid.load(folder, dtype="int8"),
        lambda: pellucid.build(tiny.config),
    ):
        with pytest.raises(ResourceError, match=r"needs 4194304\.00 GiB more"):
            call()


GIB = 2**30


@pytest.mark.parametrize(
    ("bits", "free", "advice"),
    [
        (64, 32, "try dtype='bfloat16', which takes a quarter of it"),
        (32, 32, "try dtype='bfloat16', which takes a half of it"),
        (32, 16, "try dtype='int8', which takes a quarter of it"),
        (32, 8, "try dtype='int4', which takes an eighth of it"),
        (64, 8, "try dtype='int4', which takes a sixteenth of it"),
        (16, 16, "try dtype='int8', which takes a half of it"),
        (16, 8, "try dtype='int4', which takes a quarter of it"),
        (8, 8, "try dtype='int4', which takes a half of it"),
        (4, 7, "take a smaller model"),
        (32, 7, "take a smaller model"),
    ],
)
def test_missing_memory_error_suggests_a_dtype_that_fits(
    bits: int, free: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a model of 16 Gi parameters."""
    monkeypatch.setattr(machine, "free_memory", lambda: free * GIB)
    with pytest.raises(ResourceError) as error:
        machine.require_memory(16 * GIB, bits, torch.device("cpu"))
    needed = 16 * bits / 8
    assert str(error.value) == (
        f"this model needs {needed:.1f} GiB for its weights and {free:.1f} GiB are free; {advice}"
    )
    machine.require_memory(16 * GIB, bits, torch.device("meta"))  # whose memory is unknown
    monkeypatch.setattr(machine, "free_memory", lambda: int(needed * GIB))
    machine.require_memory(16 * GIB, bits, torch.device("cpu"))


def test_suggested_dtype_depends_on_the_way_of_loading(
    tiny: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, count = tiny.save(tmp_path / "model"), _parameter_count(tiny)
    monkeypatch.setattr(machine, "free_memory", lambda: count)
    for dtype, advice in (("float32", "'int8'"), ("bfloat16", "'int8'"), ("float16", "'int8'")):
        with pytest.raises(ResourceError, match=f"; try dtype={advice}"):
            pellucid.load(folder, dtype=dtype)
    assert pellucid.load(folder, dtype="int8").module.bits == 8
    monkeypatch.setattr(machine, "free_memory", lambda: count // 2)
    with pytest.raises(ResourceError, match="; try dtype='int4', which takes a half"):
        pellucid.load(folder, dtype="int8")
    assert pellucid.load(folder, dtype="int4").module.bits == 4
    monkeypatch.setattr(machine, "free_memory", lambda: 2 * count)
    with pytest.raises(ResourceError, match="; try dtype='bfloat16', which takes a half"):
        pellucid.build(tiny.config)
    assert pellucid.build(tiny.config, dtype="bfloat16").dtype == torch.bfloat16
    monkeypatch.setattr(machine, "free_memory", lambda: count)
    for dtype in ("float32", "bfloat16"):  # models are not built in few bits
        with pytest.raises(ResourceError, match="; take a smaller model"):
            pellucid.build(tiny.config, dtype=dtype)
    with pytest.raises(ResourceError, match="; take a smaller model"):  # models in 8 and 4 bits cannot get a new head
        pellucid.load(folder, head="token-classification")


def test_training_suggests_no_dtype(
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    base, count = checkpoint("bert-body"), _parameter_count(pellucid.load(checkpoint("bert-body")))
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "good,a\nbad,b\n" * 6)
    monkeypatch.setattr(machine, "free_memory", lambda: 2 * count)
    with pytest.raises(ResourceError, match="try dtype='bfloat16'"):
        pellucid.load(base)
    for call in (
        lambda: pellucid.train(base, rows, "classify", progress=False),
        lambda: pellucid.evaluate(base, rows, "classify"),
        lambda: TextClassification(teacher=str(base)).loaded_teacher,
    ):
        with pytest.raises(ResourceError, match=r"GiB are free; take a smaller model$"):
            call()
    run_command_line = command_runner(monkeypatch, capsys)
    result = run_command_line("train", "classify", rows, "--model", base, "-o", tmp_path / "out")
    assert result.code == 6 and result.err.strip().endswith("GiB are free; take a smaller model")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_process_computes_without_waiting_for_missing_threads(tiny: pellucid.Model) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        matrix = torch.ones(400, 400)
        matrix @ matrix  # starts OpenMP's threads, which a forked child does not have

        process = os.fork()
        if not process:
            os._exit(int(torch.get_num_threads() != 1 or not torch.equal(matrix @ matrix, matrix * 400)))
        assert exit_code_of(process, timeout=30) == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("opening", ["load", "build", "compat", "index"])
def test_every_way_to_open_a_model_sets_the_requested_threads(
    opening: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoint("bert-body")
    openings: dict[str, Callable[[], object]] = {
        "load": lambda: pellucid.load(folder),
        "build": lambda: pellucid.build(tiny_config()),
        "compat": lambda: AutoModel.from_pretrained(folder),
        "index": lambda: pellucid.Index.build(folder, ["an apple"], progress=False),
    }
    monkeypatch.setenv("PELLUCID_THREADS", "²")
    streams.use_threads.cache_clear()
    try:
        with pytest.raises(InputError, match="PELLUCID_THREADS is '²'"):
            openings[opening]()
    finally:
        streams.use_threads.cache_clear()


OPENMP_SCRIPT = """
import torch
from pellucid.blocks.packed import PackedLinear
from pellucid.streams import use_threads
threads = use_threads()
x, table = torch.randn(40, 512), torch.randn(512, 512)
print(threads, float((PackedLinear(table, None, torch.float32)(x) - x @ table.T).abs().max()) < 0.01)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP as Linux has it")
@pytest.mark.parametrize(
    ("openmp_setting", "threads"),
    [("THREAD_LIMIT=2", 2), ("THREAD_LIMIT=1", 1), ("DYNAMIC=true", 1), ("MAX_ACTIVE_LEVELS=0", 1)],
)
def test_threads_are_limited_to_those_that_openmp_gives(openmp_setting: str, threads: int) -> None:
    """oneDNN silently omits the work of missing threads: vectors were off by 0.4."""
    environment = os.environ | {"PELLUCID_THREADS": "4"} | dict([f"OMP_{openmp_setting}".split("=")])
    result = subprocess.run(
        [sys.executable, "-c", OPENMP_SCRIPT], capture_output=True, text=True, env=environment, check=True
    )
    assert result.stdout.split() == [str(threads), "True"]


def _parameter_count(model: pellucid.Model) -> int:
    return sum(p.numel() for p in model.parameters())


# -- where and in what it computes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "device", ["xpu", "hpu", "vulkan", torch.device("xpu"), torch.device("cuda"), torch.device("mps")]
)
def test_missing_device_is_refused_in_one_sentence(device: str | torch.device, tiny: pellucid.Model) -> None:
    with contextlib.suppress(RuntimeError, AssertionError, ImportError):
        torch.empty(0, device=device)
        pytest.skip(f"this machine has {device}")
    with pytest.raises(InputError, match=f"device is '{torch.device(device).type}', and this "):
        tiny.to(device)


def test_loading_to_the_meta_device_is_refused(checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(InputError, match=r"device is 'meta', which holds no numbers: pass device='cpu'"):
        pellucid.load(checkpoint("bert-body"), device="meta")


def test_moving_to_the_meta_device_is_refused(tiny: pellucid.Model) -> None:
    before, vector = tiny.dtype, tiny.module.embeddings.token.weight.clone()
    for device in ("meta", torch.device("meta")):
        with pytest.raises(InputError, match=r"^device is 'meta', which holds no numbers: pass device='cpu'$"):
            tiny.to(device, "float64")
    assert tiny.dtype == before and torch.equal(tiny.module.embeddings.token.weight, vector)
    with pytest.raises(InputError, match="this model is on the device 'meta', which holds no weights to move"):
        pellucid.build(tiny.config, device="meta").to("cpu")


@pytest.mark.parametrize("dtype", [[], {}, {"float32"}])
def test_invalid_dtype_is_refused_in_one_sentence(dtype: object) -> None:
    with pytest.raises(InputError, match=r"dtype is .*, expected one of float32, float64"):
        pellucid.build(tiny_config(), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.complex64], ids=str)
def test_unsupported_dtypes_are_refused(dtype: torch.dtype, tiny: pellucid.Model) -> None:
    before = tiny.module.embeddings.token.weight.clone()
    for build_or_move in (lambda: pellucid.build(tiny.config, dtype=dtype), lambda: tiny.to(dtype=dtype)):
        with pytest.raises(InputError, match=f"dtype is {dtype}, expected a kind of real number: float32, float64, "):
            build_or_move()
    assert torch.equal(tiny.module.embeddings.token.weight, before)


@pytest.mark.parametrize("dtype", ["float16", torch.float16])
def test_dtype_in_place_of_a_device_is_explained(dtype: torch.dtype | str, tiny: pellucid.Model) -> None:
    with pytest.raises(InputError, match="to change the kind of number, pass dtype='float16'"):
        tiny.to(dtype)


# -- the fastest kind of number ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu_supports", [True, False])
@pytest.mark.parametrize("gpu_supports", [True, False])
def test_auto_dtype_depends_on_the_device(
    cpu_supports: bool, gpu_supports: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU here, PyTorch's answers about one are replaced."""
    devices: list[object] = []

    def supported(including_emulation: bool = True) -> bool:
        return gpu_supports or including_emulation  # older GPUs emulate bfloat16 with float32

    @contextlib.contextmanager
    def record_device(device: torch.device) -> Iterator[None]:
        devices.append(device)
        yield

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    monkeypatch.setattr(torch.cuda, "device", record_device)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: cpu_supports, raising=False)
    monkeypatch.setattr(machine, "_vendor_and_family", lambda: "vendor_id\t: AuthenticAMD")
    dtypes = {True: torch.bfloat16, False: torch.float32}
    second = torch.device("cuda", 1)
    assert machine.choose_dtype("auto", torch.float16, second) == dtypes[gpu_supports] and devices == [second]
    assert machine.choose_dtype("auto", torch.float16, torch.device("cpu")) == dtypes[cpu_supports]
    assert machine.choose_dtype("auto", torch.float16, torch.device("mps")) == torch.float32
    assert machine.choose_dtype("checkpoint", torch.float16, second) == torch.float16


@pytest.mark.parametrize(
    ("vendor", "amx", "fastest"),
    [
        ("vendor_id\t: GenuineIntel", False, torch.float32),
        ("vendor_id\t: GenuineIntel", True, torch.bfloat16),
        ("Intel64 Family 6 Model 207 Stepping 2, GenuineIntel", False, torch.float32),
        ("vendor_id\t: AuthenticAMD", False, torch.bfloat16),
        ("", False, torch.bfloat16),
    ],
)
def test_slow_bfloat16_is_not_the_fastest_dtype(
    vendor: str, amx: bool, fastest: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(machine, "_vendor_and_family", lambda: vendor)
    assert machine.fastest_dtype(torch.device("cpu")) == fastest


@pytest.mark.parametrize(
    ("vendor", "features", "keeps_pace"),
    [
        ("vendor_id\t: AuthenticAMD cpu family\t: 25", ["avx2", "avx512"], True),
        ("AMD64 Family 25 Model 17 Stepping 1, AuthenticAMD", ["avx2", "avx512"], True),
        ("vendor_id\t: AuthenticAMD cpu family\t: 25", ["avx2"], False),
        ("vendor_id\t: AuthenticAMD cpu family\t: 26", ["avx2", "avx512"], False),
        ("vendor_id\t: GenuineIntel cpu family\t: 6", ["avx2", "avx512"], False),
        ("", ["avx2", "avx512"], False),
    ],
)
def test_mkl_keeps_pace_on_certain_processors(
    vendor: str, features: list[str], keeps_pace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_vendor_and_family", lambda: vendor)
    monkeypatch.setattr(machine, "processor_features", lambda: features)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert machine.mkl_keeps_pace.__wrapped__() == keeps_pace
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not machine.mkl_keeps_pace.__wrapped__()


@pytest.mark.parametrize("amx", [False, True])
@pytest.mark.parametrize("fastest", [torch.float32, torch.bfloat16], ids=str)
def test_half_precision_products_are_widened_where_it_is_faster(
    fastest: torch.dtype, amx: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "fastest_dtype", lambda device: fastest)
    monkeypatch.setattr(torch.cpu, "_is_amx_fp16_supported", lambda: amx, raising=False)
    cpu, dtypes = torch.device("cpu"), (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    found = [machine.product_dtype(kind, cpu) for kind in dtypes]
    assert found == [fastest, torch.float16 if amx else torch.float32, torch.float32, torch.float64]
    for other in ("cuda", "meta"):
        assert [machine.product_dtype(kind, torch.device(other)) for kind in dtypes] == list(dtypes)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert [machine.product_dtype(kind, cpu) for kind in dtypes] == list(dtypes)


def test_processor_features_are_read_from_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in dir(torch.cpu) if name.startswith("_is_") and name.endswith("_supported")]
    for name in names:
        monkeypatch.setattr(torch.cpu, name, lambda: True)
    assert machine.processor_features() == ["avx2", "avx512", "avx512_vnni", "avx512_bf16", "amx", "amx_fp16"]
    assert machine.has_int8_products(torch.device("cpu")) and not machine.has_int8_products(torch.device("meta"))
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False)
    assert not machine.has_int8_products(torch.device("cpu")) and "avx512_vnni" not in machine.processor_features()


def test_auto_dtype_depends_on_the_target_device(
    tiny: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With "auto", the dtype depends on the target device: the meta device stands for one other than the processor."""
    devices: list[str] = []

    def fastest(device: torch.device) -> torch.dtype:
        devices.append(device.type)
        return torch.bfloat16

    monkeypatch.setattr(machine, "fastest_dtype", fastest)
    model = pellucid.load(tiny.save(tmp_path / "model"), dtype="auto")
    assert model.dtype == torch.bfloat16 and devices == ["cpu"]
    on_meta = pellucid.build(model.config, device="meta", dtype="auto")
    assert on_meta.dtype == torch.bfloat16 and devices[1:] == ["meta"]
    assert Learner(on_meta.loaded, Settings(precision="auto")).dtype == torch.bfloat16 and devices[2:] == ["meta"]
    with pytest.raises(InputError, match="holds no numbers"):
        pellucid.build(model.config).to("meta", "auto")
    assert devices[3:] == ["meta"]
    assert on_meta.to("meta", "auto").dtype == torch.bfloat16 and devices[4:] == ["meta"]


def test_int8_is_suggested_only_when_loading(tiny: pellucid.Model, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        tiny.to(dtype="int8")
    assert str(error.value) == (
        "dtype is 'int8', expected one of float32, float64, float16, bfloat16, auto, checkpoint"
    )
    tiny.save(tmp_path / "a")
    with pytest.raises(InputError, match=r"dtype is 'int9' \(did you mean int8, int4\?\), .* checkpoint, int8, int4"):
        pellucid.load(tmp_path / "a", dtype="int9")
    assert machine.choose_dtype("float64", torch.float32, torch.device("cpu")) == torch.float64
