"""Sweeps: `python train.py -m …`, each job a process and a run directory of its own.

main       overrides → Hydra's sweeper → batches of jobs → the table's report
overrides  what a sweep refuses, what all its jobs share
plan       compose, check and name a batch before any of it starts
engine     start the jobs that are not done, wait for those that run elsewhere, report failures
local      a job as a process of this machine; slurm: as a Slurm job
display    the sweep in the terminal
"""
