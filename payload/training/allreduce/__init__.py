"""The parts of allreduce_check.py: sizes, ranks, sums, times, NCCL's log and the verdicts on them."""
