#!/usr/bin/env bash
# The body of a job that is stopped in its first start and requeued: requeue.bash COMMAND...
# COMMAND trains with checkpoints; its output is added to the file `training`. See payload/jobs/slurm/train_requeue.job.
set -euo pipefail
echo "start ${SLURM_RESTART_COUNT:-0} of job $SLURM_JOB_ID"
"$@" >>training 2>&1 &
command=$!
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
  until grep -q '^epoch ' training; do
    kill -0 "$command" 2>/dev/null || break
    sleep 0.2
  done
  # like --signal=USR1@120 before the time limit: to the ranks, not to this script
  scancel --signal=USR1 "$SLURM_JOB_ID"
fi
status=0
wait "$command" || status=$?
cat training
echo "training: status $status"
if [ "$status" = 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
