"""Ctrl-C as a system may give it: which thread of a process it wakes is the system's own affair."""

MAIN = ""

ANOTHER = (
    "import signal, threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
)
"""What a program begins with whose main thread is not woken, though it is the one that Python lets handle it."""
