"""`python -m ssdsl`."""

from ssdsl.cli.main import main

main()
