"""Sweeps: `python train.py -m …`, each job a process and a run directory of its own.

main    words → Hydra's sweeper → batches of jobs → table at the end
plan    a batch composed, checked and named before any of it starts
engine  what is missing is started, what is alive elsewhere waited for, what fails told of
local   a job as a process of this machine; slurm: as a Slurm job
board   the sweep in the terminal
"""
