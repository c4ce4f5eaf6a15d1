"""`python -m hvdctl`."""

from hvdctl.cli import main

main()
