"""A step of each role without a GPU: what would wait for the device, or not run on it."""
