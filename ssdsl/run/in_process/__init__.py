"""Runs a program without processes: ranks are threads that exchange tensors in memory."""
