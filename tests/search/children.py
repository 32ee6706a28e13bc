"""Work in a process of its own, a fork of this one: it may be killed, starved or crash, and the tests go on."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import torch

KILLED = -signal.SIGKILL


def start(work: Callable[[], object]) -> int:
    """Begins some work in a fork; its process id. What it raises is printed, and ends it with 1."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # whose threads are not here, nor are PyTorch's
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the parent reads the exit code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(process: int, within: float = 60.0) -> int:
    """Waits for a fork: its exit code, or the signal that ended it, negative."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError(f"a fork has not ended within {within} seconds")


def kill_after(process: int, seconds: float) -> int:
    """Kills a fork with signal 9 after some time, if it has not ended before."""
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
