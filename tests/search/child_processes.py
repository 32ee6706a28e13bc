"""Work in a fork of this process, which may be killed, run out of memory or crash without ending the tests."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

import torch

KILLED = -signal.SIGKILL


def start_fork(work: Callable[[], object]) -> int:
    """Runs `work` in a fork; returns its process id. An exception is printed, and the fork exits with 1."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork has neither its threads nor PyTorch's
        torch.set_num_threads(1)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the parent reads the exit code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def exit_code_of(process: int, timeout: float = 60.0) -> int:
    """Waits for a fork; returns its exit code, or the negative number of the signal that ended it."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        pid, status = os.waitpid(process, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    raise AssertionError(f"a fork has not ended within {timeout} seconds")


def kill_after(process: int, seconds: float) -> int:
    """Kills a fork with signal 9 after `seconds`, unless it has ended; returns the same as `exit_code_of`."""
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
