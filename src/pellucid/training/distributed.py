"""Data-parallel training in several processes, as `torchrun` starts them; a single process has a world size of 1.

Each process holds the whole model. The micro-batches of a step are dealt out in turn, the gradients are summed, and
every process makes the same optimizer step; the first one evaluates, saves and logs.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from pellucid.errors import Argument, InputError, PellucidError
from pellucid.machine import no_grad

TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others; only the first one evaluates, which may take long."""

BUCKET = 2**23
"""Elements that are communicated at a time."""

_REQUIRED_VARIABLES = ("RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """The rank of this process and the number of processes.  device: of the tensors that they exchange."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_first(self) -> bool:
        """Whether this process evaluates, saves and logs."""
        return self.rank == 0

    def total(self, number: float) -> float:
        """The sum of a number over all processes."""
        return self.totals([number])[0]

    def totals(self, numbers: Sequence[float]) -> list[float]:
        """The sum of each number over all processes, which all wait here for the last one."""
        if self.world_size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        with self._explain_lost_process():
            dist.all_reduce(sums)
        return sums.tolist()

    def broadcast(self, value: Any) -> Any:
        """The first process's value, in every process."""
        values = [value]
        if self.world_size > 1:
            with self._explain_lost_process():
                dist.broadcast_object_list(values, src=0, device=self.device)
        return values[0]

    @no_grad()
    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Copies the first process's tensors to every process, in place."""
        for bucket in _buckets(tensors) if self.world_size > 1 else ():
            flat = torch.cat([tensor.detach().flatten() for tensor in bucket])
            with self._explain_lost_process():
                dist.broadcast(flat, src=0)
            _copy_back(flat, bucket)

    @no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces each gradient by its sum over all processes. One that is None in some of them counts as 0 there, and
        one that is None in all of them stays None."""
        if self.world_size == 1:
            return
        known = list(parameters)
        counts = self.totals([float(p.grad is not None) for p in known])
        for p in known:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        for bucket in _buckets(p.grad for p, many in zip(known, counts) if many and p.grad is not None):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            with self._explain_lost_process():
                dist.all_reduce(flat)
            _copy_back(flat, bucket)
        for p, many in zip(known, counts):
            p.grad = p.grad if many else None

    @no_grad()
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor of each process, by rank; they may differ in the length of their first axis."""
        if self.world_size == 1:
            return [tensor]
        lengths = [int(many) for many in self.totals([len(tensor) * (i == self.rank) for i in range(self.world_size)])]
        padded = tensor.new_zeros(max(lengths), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        found = [torch.empty_like(padded) for _ in lengths]
        with self._explain_lost_process():
            dist.all_gather(found, padded)
        return [one[:length] for one, length in zip(found, lengths)]

    @contextlib.contextmanager
    def _explain_lost_process(self) -> Iterator[None]:
        """Turns PyTorch's error about a lost process into a PellucidError."""
        try:
            yield
        except RuntimeError as error:
            this = f"process {self.rank} of {self.world_size}"
            raise PellucidError(
                f"{this} lost contact with the others: one of them has ended, and printed why"
            ) from error


@contextlib.contextmanager
def join_processes(device: torch.device) -> Iterator[Ranks]:
    """Joins the processes that `torchrun` has started, within the block; without `torchrun` there is one.

    device: of the model: GPUs communicate by NCCL where that is available, everything else by Gloo.
    Raises InputError where the environment is incomplete or the processes cannot connect.
    """
    world = _world_size()
    if dist.is_available() and dist.is_initialized():  # by the calling program, which also destroys it
        yield Ranks(dist.get_rank(), dist.get_world_size(), device)
        return
    if world == 1:
        yield Ranks(device=device)
        return
    uses_nccl = device.type == "cuda" and dist.is_nccl_available()
    if uses_nccl:
        _check_own_gpu(device)
    try:
        dist.init_process_group("nccl" if uses_nccl else "gloo", timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"the {world} processes could not connect to each other: {str(error).splitlines()[0]}"
        ) from error
    try:
        yield Ranks(dist.get_rank(), world, device if uses_nccl else torch.device("cpu"))
    finally:
        dist.destroy_process_group()


def _check_own_gpu(device: torch.device) -> None:
    """Raises InputError where several processes of this machine would share a GPU, which NCCL does not support."""
    local = os.environ.get("LOCAL_RANK") or os.environ.get("RANK", "0")
    if str(device.index or 0) != local:
        raise InputError(
            f"process {local} of this machine has its model on {device}: load it with ",
            Argument("device", f"cuda:{local}"),
        )
    torch.cuda.set_device(device)


def _world_size() -> int:
    """The number of processes by the environment's WORLD_SIZE, 1 where it is not set."""
    world_size = os.environ.get("WORLD_SIZE", "1")
    if not (world_size.isascii() and world_size.isdecimal()) or not 1 <= int(world_size) <= 100_000:
        raise InputError(f"WORLD_SIZE is {world_size!r}, expected the number of processes that torchrun has started")
    missing = [name for name in _REQUIRED_VARIABLES if name not in os.environ]
    if int(world_size) > 1 and missing:
        raise InputError(
            f"WORLD_SIZE is {world_size}, and {missing[0]} is not set: start several processes with torchrun"
        )
    return int(world_size)


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Consecutive tensors of at most `BUCKET` elements together, or a single one with more."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(one.numel() for one in bucket) + tensor.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def _copy_back(flat: Tensor, bucket: list[Tensor]) -> None:
    """Copies a concatenation back into its tensors."""
    for tensor, part in zip(bucket, flat.split([one.numel() for one in bucket])):
        tensor.copy_(part.view_as(tensor))
