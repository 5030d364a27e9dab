"""Run sweeps, `python train.py -m …`: each job has its own process and its own run directory.

main       overrides → Hydra's sweeper → batches of jobs → the table's report
overrides  rejects overrides that a sweep sets itself, finds those that all jobs share
search     proposes the jobs one by one, with Optuna, and stops those that are not among the best
space      the ranges of a search
study      the trials of a search on disk
plan       composes, checks and labels all jobs of a batch before the first one starts
engine     starts unfinished jobs, waits for runs of other processes, records failures
work       a job and its state
local      starts a job as a process of this machine
slurm      starts a job as a Slurm job
slurm_job  a job in Slurm's queue: state, result, end
allocation what runs inside of a Slurm job
display    shows the sweep in the terminal
"""
