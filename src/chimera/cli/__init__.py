"""The command line: `main` knows all commands. Bad input gives one line and exit code 2.

train      trains a run or a sweep, shows a configuration, lists components and tables
table      commands on the finished runs of a table; finished: on one finished run
folders    commands on folders of runs; doctor: on this machine
command    makes a command of a function

This file imports nothing, so that a bad command fails before torch is loaded.
"""
