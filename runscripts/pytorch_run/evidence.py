# SPDX-License-Identifier: BSD-3-Clause
"""Decides after a step which of its nodes have failed: a program's own failure leaves no such evidence."""

from pytorch_run.nodes import ask_nodes, failed_checks
from pytorch_run.slurm import job_state, node_states


def find_failed(nodes, env, drained):
    """The nodes that failed, each with the reason; those that Slurm does not report are asked.

    `drained` has the nodes that the site had taken out of service before the step.
    """
    failed = lost_nodes(nodes, env, drained)
    left = [node for node in nodes if node not in failed]
    if left:
        answers, silent = ask_nodes(left, env)
        failed.update(silent)
        failed.update(failed_checks(answers)[0])
    return {node: failed[node] for node in nodes if node in failed}


def lost_nodes(nodes, env, drained):
    """The nodes that Slurm reports as failed after a step, each with the reason.

    srun knows no status of a rank on such a node, and returns 0 if all others did (Slurm 22.05): a step with one is not
    complete, whatever its status.
    """
    return reported_by_slurm(nodes, job_state(env)[1], node_states(nodes, env), drained)


def reported_by_slurm(nodes, in_job, states, drained=()):
    """The nodes that Slurm reports as failed, each with the reason.

    `in_job` has the nodes that the job still has, None if unknown; `states` a slurm.State by node.
    """
    failed = {}
    for node in nodes:
        state = states.get(node)
        if state and (state.is_bad or (state.is_drained and node not in drained)):
            failed[node] = str(state)
        elif in_job is not None and node not in in_job:
            failed[node] = "Slurm removed it from the job"
    return failed
