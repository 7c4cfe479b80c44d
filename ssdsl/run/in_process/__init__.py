"""Runs a program without processes: its ranks are threads that exchange tensors in memory."""
