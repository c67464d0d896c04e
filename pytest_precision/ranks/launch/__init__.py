"""Launch: ranks in processes that torchrun or srun has started, here or on other machines."""
