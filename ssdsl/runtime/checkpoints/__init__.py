"""Checkpoints in torch.distributed.checkpoint's format, saved under one plan and loaded under any."""
