"""Run sweeps, `python train.py -m …`: each job has its own process and its own run directory.

run_sweep     overrides → jobs → outcome
compose_jobs  every combination of the values on the command line, composed and checked
job           a job: the run that it is, and its state in the sweep
scheduler     starts unfinished jobs, waits for runs of other processes, shows all in the terminal
outcome       the table's report, the comparison, the exit code
local         starts a job as a process of this machine
slurm         starts a job as a Slurm job
search        Optuna proposes the jobs one by one, and stops those that are not among the best
"""
