"""What follows from a program alone, for all that reads it: its collectives, what backward gathers again, the state
that training keeps."""
