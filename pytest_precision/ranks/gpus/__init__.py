"""GPUs: which of them a group of ranks gets, and which process may use one now."""
