"""Devices and links, and what communication costs on them."""
