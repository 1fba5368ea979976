# SPDX-License-Identifier: BSD-3-Clause
"""The all-reduce check: message sizes, ranks, sums, times, NCCL's log, and the verdicts on them."""
