"""`python -m bench foresight`: what the simulator says beside what papers and this machine measured."""
