"""Diagnostics of the simulator: what a cluster's file does not say (E0616)."""

from ssdsl.text.diagnostic import Diagnostic


class NoHost(Diagnostic):
    """A plan assigns state to the host, and the file of the cluster says nothing of its nodes' hosts: how much memory
    they have, and how fast the link to each device is."""

    code = "E0616"
    title = "the file of `{cluster}` says nothing of the memory of hosts"
    label = "this state lies there"
    help = "add a table [nodes.host] with memory_gib, memory_bandwidth_gb_s and bandwidth_gb_s behind [[nodes]]"
    cluster: str
