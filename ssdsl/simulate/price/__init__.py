"""The time of computing and of communication from first principles."""
