"""Files for schedulers, each of which starts torchrun on every node of a job."""
