"""Copies the weights of a checkpoint into the modules that they belong to."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from pellucid.blocks.copies import packed_copy
from pellucid.blocks.packing import LowBitPacking
from pellucid.blocks.rounding import scales_of
from pellucid.checkpoints.names import TensorLocation
from pellucid.checkpoints.plan import Plan
from pellucid.checkpoints.tensor_layouts import UNCHANGED
from pellucid.checkpoints.weights import StoredTensor
from pellucid.errors import Argument, CheckpointMismatchError, CorruptFileError, InputError
from pellucid.machine import (
    NARROWER_FLOATS,
    dtype_name,
    inference_mode,
    memory_errors,
    no_grad,
    release_memory,
    require_memory,
)
from pellucid.models import Network, assemble, count, initialise
from pellucid.models.assemble import allocate, tie_parameters

log = logging.getLogger("pellucid")

BITS = {"int8": 8, "int4": 4}
"""Names of low-bit number formats, and their bits; such weights never exist in memory as floats."""


@memory_errors()
def fill(
    plan: Plan,
    tensors: dict[str, StoredTensor],
    device: torch.device,
    dtype: torch.dtype,
    attention: str,
    seed: int,
    alternatives: Mapping[str, int],
) -> Network:
    """A module with the file's weights, and random ones from `seed` for the plan's `newly_initialized`.

    alternatives: dtypes that an error may suggest where memory is short; see `require_memory`.
    """
    with torch.device("meta"):
        module = assemble(plan.config, attention=attention)
    if plan.newly_initialized:  # new parts must train, which excludes low-bit dtypes
        alternatives = {name: bits for name, bits in alternatives.items() if name in NARROWER_FLOATS}
    require_memory(count(module), dtype.itemsize * 8, device, alternatives)
    allocate(module, device, dtype)
    if plan.newly_initialized:
        initialise(module, plan.config.initializer_range, seed)
    parameters = dict(module.named_parameters())
    with no_grad():
        for parameter, location in plan.locations.items():
            parameters[parameter].copy_(_read_parameter(location, tensors, dtype))
        for parameter in plan.zeros:
            parameters[parameter].zero_()
        _check_duplicates(plan, tensors, lambda parameter: parameters[parameter])
    tie_parameters(module, plan.tied)
    return module.eval()


@memory_errors()
@inference_mode(False)  # regardless of the caller's setting: gradients must be able to pass through these tensors
def fill_packed(plan: Plan, tensors: dict[str, StoredTensor], bits: int, attention: str) -> Network:
    """A module whose weight matrices have 8 or 4 bits per value; it can neither be trained nor saved.

    Each matrix is read, packed and released before the next, so that the float weights are never all in memory.
    """
    if plan.newly_initialized:
        raise InputError("a head that is not in the file has random weights that need training: load it as float32")
    with torch.device("meta"):
        module = assemble(plan.config, attention=attention)

    def pieces(name: str) -> Iterator[Tensor]:
        release_memory()  # of the previous matrix
        if name in plan.zeros:
            yield torch.zeros(module.get_parameter(name).shape, device="cpu", dtype=torch.float32)
            return
        location = plan.locations[name]
        if location.layout is not UNCHANGED:
            yield _read_parameter(location, tensors, torch.float32)
            return
        for piece in tensors[location.tensor_name].pieces():
            yield require_finite(location.tensor_name, piece, torch.float32)

    def grids(name: str) -> Tensor | None:
        location = plan.locations.get(name)
        if (
            location is None
            or location.layout is not UNCHANGED
            or (read := tensors[location.tensor_name].grids) is None
        ):
            return None
        release_memory()
        found = read()
        require_finite(location.tensor_name, scales_of(found))
        return found

    _check_duplicates(plan, tensors, lambda parameter: torch.cat(list(pieces(parameter))))
    release_memory()
    # packed_copy takes its dtype from here, whatever the global default is
    allocate(module, torch.device("meta"), torch.float32)
    require_memory(count(module), bits, torch.device("cpu"))
    packed = packed_copy(
        module, LowBitPacking(bits, pieces, grids, plan.tied, is_autoregressive=module.is_autoregressive)
    )
    packed.bits, packed.is_packed = bits, True
    release_memory()
    return packed


def _check_duplicates(plan: Plan, tensors: dict[str, StoredTensor], parameter_of: Callable[[str], Tensor]) -> None:
    """Checks that what a file holds twice is equal, unless the reference defines which copy counts."""
    for duplicate in plan.duplicates:
        tensor_name, first = duplicate.location.tensor_name, plan.locations[duplicate.parameter].tensor_name
        other = _read_parameter(duplicate.location, tensors)
        if torch.equal(parameter_of(duplicate.parameter), other.to(parameter_of(duplicate.parameter))):
            continue
        if not duplicate.may_differ:
            advice = (
                f"; where both are meant, set {duplicate.tying_fact} to false in config.json"
                if duplicate.tying_fact
                else ""
            )
            raise CheckpointMismatchError(f"{tensor_name} and {first} should be the same table and differ{advice}")
        log.warning("%s and %s differ: the second is used, as in the reference", tensor_name, first)


def check_not_meta(device: torch.device) -> None:
    """Refuses the meta device, on which weights would be lost."""
    if device.type == "meta":
        raise InputError("device is 'meta', which holds no numbers: pass ", Argument("device", "cpu"))


def move_network(module: Network, device: torch.device, dtype: torch.dtype) -> None:
    """Moves a module to another dtype and device in place; changes nothing where a value does not fit the dtype."""
    if not all(parameter.is_meta for parameter in module.parameters()):
        check_not_meta(device)
    elif device.type != "meta":
        raise InputError("this model is on the device 'meta', which holds no weights to move: build or load it again")
    for name, parameter in module.named_parameters():
        if torch.finfo(dtype).max < torch.finfo(parameter.dtype).max and not parameter.is_meta:
            require_finite(name, parameter.detach(), dtype)
    module.to(device=device, dtype=dtype)


def _read_parameter(
    location: TensorLocation, tensors: dict[str, StoredTensor], dtype: torch.dtype | None = None
) -> Tensor:
    """The parameter that is stored there.  dtype: as in `require_finite`."""
    name = location.tensor_name
    return location.extract(require_finite(name, tensors[name].read(), dtype))


def require_finite(name: str, numbers: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor, checked to hold no NaN or infinity, and none after conversion to a narrower dtype.

    dtype: the target of the conversion; None for none.
    Raises CorruptFileError, and InputError where values are too large for `dtype`.
    """
    if not numbers.numel():
        return numbers
    ends = torch.aminmax(numbers)  # one pass; NaN shows in both. A sum in float64 would first copy them all
    if not all(map(math.isfinite, ends)):
        raise CorruptFileError(f"{name} holds NaN or infinite numbers: its file is damaged or its training had failed")
    if dtype is not None and not all(math.isfinite(end.to(dtype)) for end in ends):
        max_value, kind = max(abs(end.item()) for end in ends), dtype_name(dtype)
        wider = "float64" if dtype == torch.float32 or max_value > torch.finfo(torch.float32).max else "float32"
        raise InputError(
            f"{name} holds {max_value:.6g}, and the largest number of {kind} is {torch.finfo(dtype).max:.6g}: pass ",
            Argument("dtype", wider),
        )
    return numbers
