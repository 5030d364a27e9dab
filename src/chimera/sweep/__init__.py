"""Run sweeps, `python train.py -m …`: each job has its own process and its own run directory.

run_sweep     overrides → jobs → outcome
compose_jobs  every combination of the values on the command line, composed and checked
job           a job: the run that it is, and its state in the sweep
scheduler     starts unfinished jobs, waits for runs of other processes, records failures
outcome       the table's report, the comparison, the exit code
display       shows the sweep in the terminal, with the time that is left
local         starts a job as a process of this machine
slurm         starts a job as a Slurm job
search        proposes the jobs one by one, and stops those that are not among the best
study         the space and the trials of a search, in Optuna
"""
