"""Files for schedulers: each starts torchrun on every node of a job."""
