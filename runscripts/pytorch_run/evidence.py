"""Decides after a step which of its nodes have failed: a program's own failure leaves no such evidence."""

from pytorch_run.nodes import ask_nodes, failed_checks
from pytorch_run.rank_logs import is_complete, nodes_with_hardware_errors
from pytorch_run.slurm import job_state, node_states


def find_failed(nodes, env, drained, directories):
    """The nodes that failed, each with the reason.

    `drained` has the nodes that the site had taken out of service before the step, `directories` the ranks' logs of the
    step. Nodes that neither Slurm nor the logs name are asked.
    """
    failed = reported_by_slurm(nodes, job_state(env)[1], node_states(nodes, env), drained)
    for node, reason in nodes_with_hardware_errors(directories).items():
        if node in nodes:
            failed.setdefault(node, reason)
    left = [node for node in nodes if node not in failed]
    if left:
        answers, silent = ask_nodes(left, env)
        failed.update(silent)
        failed.update(failed_checks(answers)[0])
    return {node: failed[node] for node in nodes if node in failed}


def is_lost(nodes, env, drained, directories):
    """Whether a step that ended with status 0 was on a node that failed before its ranks ended.

    srun knows no status of a rank on such a node, and returns 0 if all others did (Slurm 22.05).
    """
    failed = reported_by_slurm(nodes, job_state(env)[1], node_states(nodes, env), drained)
    return bool(failed) and not is_complete(directories)


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
