"""Finds what a forward does that its captured graph would not do, before training differs."""
