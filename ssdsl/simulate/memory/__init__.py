"""The memory of devices: what forward keeps for backward, and the peak of a step."""
