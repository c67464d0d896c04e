"""Megatron-LM's distributed optimizer: flat buffers, sharded masters, gathered parameters."""
