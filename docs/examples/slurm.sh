#!/usr/bin/env bash
#SBATCH --job-name=precision
#SBATCH --array=1-4
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=01:30:00
#SBATCH --signal=B:INT@120
# A matrix as a job array, one shard a task: sbatch slurm.sh tests/precision; arguments go to pytest.
# A cell with more ranks than the node has GPUs is skipped, for which --precision-require makes the session red. Ask for
# as many GPUs as the largest cell has ranks, or leave such cells out: sbatch slurm.sh --precision-select world_size=1,2 tests
set -euo pipefail
# In place of the shell, which Slurm interrupts two minutes before its time is over: the report is closed then.
exec python -m pytest --precision-matrix --precision-require --precision-device cuda \
    --precision-shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
    --precision-report="precision-report/$SLURM_ARRAY_JOB_ID/$SLURM_ARRAY_TASK_ID" "$@"
