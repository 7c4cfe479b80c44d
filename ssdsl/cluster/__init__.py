"""Clusters: devices and links, and the time of communication on them."""
