"""`python -m pellucid` is the command `pellucid`."""

from pellucid.cli import main

main()
