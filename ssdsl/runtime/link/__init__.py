"""An emulated network between processes of one machine, as a backend of torch.distributed.

import ssdsl.runtime.link.backend                    # registers it
torch.distributed.init_process_group("ssdsl_link")

SSDSL_LINK=bandwidth=1Gb/s,latency=2ms torchrun --nproc-per-node=2 train.py
"""
