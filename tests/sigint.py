"""Ctrl-C with another thread woken than the main one: the system decides which thread of a process gets a signal."""

MAIN = ""

ANOTHER = (
    "import signal, threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
)
"""The beginning of a program whose main thread does not get SIGINT, although only that thread runs Python's handler."""
