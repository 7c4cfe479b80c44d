"""Simulates a program: the time of a step, the timeline of each device, and the content of its memory."""
