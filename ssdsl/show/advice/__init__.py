"""Advice on plans: lines that cost most, devices that are full, traffic between nodes."""
