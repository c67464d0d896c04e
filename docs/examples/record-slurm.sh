#!/usr/bin/env bash
#SBATCH --job-name=record
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=00:30:00
# Record a script on nodes with disks of their own: sbatch record-slurm.sh DIR train.py ARGUMENTS
# Each node writes to its own disk. What all have written is copied to the new folder DIR, which the
# nodes share, and joined to DIR/joined; name DIR/node0 and so on where they share none.
set -euo pipefail
out=$(realpath "$1")
shift
own=${TMPDIR:-/tmp}/recording-$SLURM_JOB_ID
mkdir "$out"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500
# A script that reads torchrun's variables finds them.
# shellcheck disable=SC2016 # each task has its own
srun --kill-on-bad-exit=1 bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
    exec python -m pytest_precision record --out "$0" -- "$@"' "$own" "$@"
# shellcheck disable=SC2016
srun --ntasks-per-node=1 bash -c 'mv "$0" "$1/node$SLURM_NODEID"' "$own" "$out"
python -m pytest_precision join "$out"/node* --out "$out/joined"
